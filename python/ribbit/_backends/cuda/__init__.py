"""Log densities and predictions as kernels of a device."""
