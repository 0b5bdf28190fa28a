"""What kernels are launched, in which order, for one job."""
