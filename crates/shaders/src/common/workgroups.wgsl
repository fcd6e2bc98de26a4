// Index of a workgroup in a grid that `Workgroups::linear` may have folded over x and y.
fn linear_workgroup(id: vec3u, count: vec3u) -> u32 {
    return id.y * count.x + id.x;
}
