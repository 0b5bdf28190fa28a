#!/bin/sh
# no_weak_symbols.sh NM TABLE OBJECT...: fails unless the objects define one global symbol, TABLE,
# and no weak one.
nm=$1 table=$2
shift 2
symbols=$("$nm" -C --defined-only "$@" | grep -E '^[0-9a-f]+ [A-Zuvw] ')
echo "$symbols"
test "$(echo "$symbols" | cut -d' ' -f3-)" = "$table"
