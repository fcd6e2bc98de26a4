// SiLU(gate) * up: an output takes two sums, of the rows o (gate) and rows / 2 + o (up).
const SUMS_PER_OUTPUT = 2u;

fn matrix_row(sum: u32) -> u32 {
    return (sum & 1u) * (params.rows / 2u) + sum / 2u;
}

// Stores output `i` of a workgroup whose first sum is `first`.
fn store(first: u32, i: u32) {
    let o = first / 2u + i;
    if (o < params.rows / 2u) {
        let factor = norm_factor();
        let gate = factor * total(2u * i);
        y[o] = gate * sigmoid(gate) * (factor * total(2u * i + 1u));
    }
}
