"""Tables and arrays in, numbers out: the native core and the device."""
