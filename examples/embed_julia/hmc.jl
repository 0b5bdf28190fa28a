# Ribbit from Julia: HMC of a density that is written in Julia.
#   julia hmc.jl "$(python -c 'import ribbit; print(ribbit.get_include())')/../lib/libribbit.so.1"
const lib = ARGS[1]

mutable struct Options  # ribbit_hmc_options
    size::Csize_t
    seed::UInt64; chains::Int64; chain_ids::Ptr{UInt32}
    first_step::UInt64; warmup::Int64; draws::Int64; thin::Int64
    step_size::Cdouble; trajectory_length::Cdouble; num_steps::Int64
    randomize_length::Int32; reserved::Int32
    step_size_jitter::Cdouble; divergence_threshold::Cdouble; max_num_steps::Int64
    inverse_mass::Ptr{Cvoid}; progress::Ptr{Cvoid}; user::Ptr{Cvoid}; interrupt::Ptr{Cvoid}
    target_accept::Cdouble; step_sizes::Ptr{Cdouble}
    Options() = new()
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

target, o = Ref{Ptr{Cvoid}}(C_NULL), Options()
f = @cfunction(density, Cint, (Csize_t, Ptr{Cdouble}, Ptr{Cdouble}, Ptr{Cdouble}, Ptr{Cvoid}))
check(@ccall lib.ribbit_target_create_function(f::Ptr{Cvoid}, 2::Int64, C_NULL::Ptr{Cvoid},
                                               0::Cint, target::Ptr{Ptr{Cvoid}})::Cint)
check(@ccall lib.ribbit_hmc_options_init(o::Ref{Options}, sizeof(Options)::Csize_t)::Cint)
o.seed, o.chains, o.draws, o.step_size, o.num_steps = 1, 4, 1000, 0.5, 4
position, draws = zeros(2, 4), zeros(2, 1000, 4)  # C order backwards
check(@ccall lib.ribbit_hmc(target[]::Ptr{Cvoid}, o::Ref{Options}, position::Ptr{Cdouble},
                            draws::Ptr{Cdouble}, C_NULL::Ptr{Cvoid}, C_NULL::Ptr{Int64})::Cint)
println("E x1 x2 = ", sum(draws[1, :, :] .* draws[2, :, :]) / 4000, ", 0.8 is true")
@ccall lib.ribbit_target_free(target[]::Ptr{Cvoid})::Cvoid
