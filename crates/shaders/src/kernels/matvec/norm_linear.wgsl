const SUMS_PER_OUTPUT = 1u;

fn matrix_row(sum: u32) -> u32 {
    return sum;
}

// Stores output `i` of a workgroup whose first sum is `first`.
fn store(first: u32, i: u32) {
    let o = first + i;
    if (o < params.rows) {
        y[params.row_offset + o] = norm_factor() * total(i);
    }
}
