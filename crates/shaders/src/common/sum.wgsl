var<workgroup> sum_parts: array<f32, 64>;

// Sum of `value` over the 64 invocations of the workgroup, the same bits in each of them.
// Every invocation adds the same 64 numbers: one barrier instead of the six of a tree.
// A kernel calls it once: a second call would overwrite parts that are still being read.
fn workgroup_sum(lane: u32, value: f32) -> f32 {
    sum_parts[lane] = value;
    workgroupBarrier();
    var total = 0.0;
    for (var i = 0u; i < 64u; i += 1u) {
        total += sum_parts[i];
    }
    return total;
}
