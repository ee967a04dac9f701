"""Flash decode: few query rows, keys on the M side of mma, split over warps, clusters and grid."""
