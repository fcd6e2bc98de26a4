// The weights of columns k to k + 15, k % 16 == 0, from unpack8; past the end of a row, which is a
// multiple of eight, the last eight again.
fn unpack16(row: u32, k: u32) -> mat4x4f {
    let first = unpack8(row, k);
    let second = unpack8(row, min(k + 8u, params.cols - 8u));
    return mat4x4f(first.lo, first.hi, second.lo, second.hi);
}
