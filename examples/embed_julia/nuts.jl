# Ribbit from Julia: NUTS on a density that is written in Julia.
#   julia nuts.jl "$(python -c 'import ribbit; print(ribbit.get_include())')/../lib/libribbit.so.1"
const lib = ARGS[1]

mutable struct RunOptions  # ribbit_run_options
    size::Csize_t
    seed::UInt64; chains::Int64; chain_ids::Ptr{UInt32}
    warmup::Int64; thin::Int64
    save_warmup::Int32; reserved::Int32
    RunOptions() = new()
end

check(status) = status == 0 || error(unsafe_string(@ccall lib.ribbit_last_error()::Cstring))

# log density of a correlated normal, and its gradient
function density(n::Csize_t, x::Ptr{Cdouble}, grad::Ptr{Cdouble}, lp::Ptr{Cdouble}, user::Ptr{Cvoid})
    q, g = unsafe_wrap(Array, x, n), unsafe_wrap(Array, grad, n)
    d = q[1] - 0.8 * q[2]
    unsafe_store!(lp, -0.5 * (d^2 / 0.36 + q[2]^2))
    g[1], g[2] = -d / 0.36, 0.8 * d / 0.36 - q[2]
    return Cint(0)
end

target, chains = Ref{Ptr{Cvoid}}(C_NULL), Ref{Ptr{Cvoid}}(C_NULL)
f = @cfunction(density, Cint, (Csize_t, Ptr{Cdouble}, Ptr{Cdouble}, Ptr{Cdouble}, Ptr{Cvoid}))
check(@ccall lib.ribbit_target_create_function(f::Ptr{Cvoid}, 2::Int64, C_NULL::Ptr{Cvoid},
                                               0::Cint, target::Ptr{Ptr{Cvoid}})::Cint)
options = RunOptions()
check(@ccall lib.ribbit_run_options_init(options::Ref{RunOptions},
                                         sizeof(RunOptions)::Csize_t)::Cint)
options.seed, options.chains, options.warmup = 1, 4, 300
check(@ccall lib.ribbit_chains_create(target[]::Ptr{Cvoid}, "nuts"::Cstring, C_NULL::Ptr{Cvoid},
                                      0::Int64, options::Ref{RunOptions},
                                      chains::Ptr{Ptr{Cvoid}})::Cint)
check(@ccall lib.ribbit_chains_start(chains[]::Ptr{Cvoid}, C_NULL::Ptr{Cvoid},
                                     C_NULL::Ptr{Cvoid})::Cint)
draws, made, count = zeros(2, 1000, 4), 0, Ref{Int64}(0)  # C order backwards
while made < 1000  # a place for progress
    place = pointer(draws, 2made + 1)
    GC.@preserve draws check(@ccall lib.ribbit_chains_advance(
        chains[]::Ptr{Cvoid}, (1000 - made)::Int64, 1::Cdouble, place::Ptr{Cdouble}, 1000::Int64,
        count::Ptr{Int64}, C_NULL::Ptr{Cvoid})::Cint)
    global made += count[]
end
println("E x1 x2 = ", sum(draws[1, :, :] .* draws[2, :, :]) / 4000, ", 0.8 is true")
@ccall lib.ribbit_chains_free(chains[]::Ptr{Cvoid})::Cvoid
@ccall lib.ribbit_target_free(target[]::Ptr{Cvoid})::Cvoid
