struct Params {
    // Rows of the matrix, which are as many sums.
    rows: u32,
    cols: u32,
    row_offset: u32,
    accumulate: u32,
    quants_per_row: u32,
    scales_per_row: u32,
    eps: f32,
    // Sums that a workgroup computes; only the subgroup variant looks, the others fix it.
    sums_per_workgroup: u32,
}
