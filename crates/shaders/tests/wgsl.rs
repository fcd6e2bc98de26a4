//! Every shader against its Rust side: naga accepts it, and parameters, bindings and workgroup
//! size are what the kernel declares. These replace "keep in sync" comments.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

use naga::{AddressSpace, ScalarKind, StorageAccess, TypeInner};
use signbit_shaders::{Access, Element, Kernel, State, StateAccess, kernels};

fn validated(kernel: &Kernel) -> (naga::Module, naga::valid::ModuleInfo) {
    let source = kernel.wgsl();
    let module = naga::front::wgsl::parse_str(&source)
        .unwrap_or_else(|e| panic!("{}: {}", kernel.name, e.emit_to_string(&source)));
    let capabilities = if kernel.needs_subgroups() {
        naga::valid::Capabilities::SUBGROUP
    } else {
        naga::valid::Capabilities::empty()
    };
    let mut validator = naga::valid::Validator::new(naga::valid::ValidationFlags::all(), capabilities);
    validator.subgroup_stages(naga::valid::ShaderStages::COMPUTE);
    validator.subgroup_operations(naga::valid::SubgroupOperationSet::all());
    let info = validator
        .validate(&module)
        .unwrap_or_else(|e| panic!("{}: {}", kernel.name, e.emit_to_string(&source)));
    (module, info)
}

fn size_of_type(module: &naga::Module, ty: naga::Handle<naga::Type>) -> usize {
    module.types[ty].inner.size(module.to_ctx()) as usize
}

#[test]
fn names_are_unique_and_every_kernel_has_cases() {
    let cases = kernels::cases().unwrap();
    let mut names = std::collections::BTreeSet::new();
    for kernel in kernels::all() {
        assert!(names.insert(kernel.name), "two kernels are called {}", kernel.name);
        // 16 KiB is the lowest binding limit that the engine's tests plan for; a 4-bit cache takes more.
        let least = if kernel.name.starts_with("kivi") { kernels::kivi::MIN_BUFFER_WORDS } else { 4096 };
        for max_buffer_words in [u64::MAX, least] {
            let probe = kernels::probe(kernel, max_buffer_words).unwrap();
            assert!(probe.is_some(), "{} has no probe within {max_buffer_words} words", kernel.name);
        }
        assert!(cases.iter().any(|c| c.dispatch.kernel.name == kernel.name), "{} has no case", kernel.name);
    }
    for case in &cases {
        assert!(names.contains(case.dispatch.kernel.name), "{} is not listed", case.dispatch.kernel.name);
    }
}

#[test]
fn wgsl_agrees_with_rust() {
    for kernel in kernels::all() {
        let (module, _) = validated(kernel);
        let global = |binding: u32| {
            let found = module
                .global_variables
                .iter()
                .find(|(_, g)| g.binding.as_ref().is_some_and(|b| b.group == 0 && b.binding == binding));
            found.unwrap_or_else(|| panic!("{}: no binding {binding}", kernel.name)).1
        };
        let params = global(0);
        assert_eq!(params.space, AddressSpace::Uniform, "{}", kernel.name);
        let size = size_of_type(&module, params.ty);
        assert_eq!(size.next_multiple_of(16), kernel.params_size, "{}: size of Params", kernel.name);

        let state = global(1);
        assert_eq!(size_of_type(&module, state.ty), size_of::<State>(), "{}: size of State", kernel.name);
        match kernel.state {
            StateAccess::Uniform => assert_eq!(state.space, AddressSpace::Uniform, "{}", kernel.name),
            StateAccess::ReadWrite => assert_eq!(
                state.space,
                AddressSpace::Storage { access: StorageAccess::LOAD | StorageAccess::STORE },
                "{}",
                kernel.name
            ),
        }
        for (i, binding) in kernel.bindings.iter().enumerate() {
            let variable = global(i as u32 + 2);
            assert_eq!(variable.name.as_deref(), Some(binding.name), "{}", kernel.name);
            let access = match binding.access {
                Access::Read => StorageAccess::LOAD,
                Access::ReadWrite => StorageAccess::LOAD | StorageAccess::STORE,
            };
            assert_eq!(variable.space, AddressSpace::Storage { access }, "{}: {}", kernel.name, binding.name);
            let TypeInner::Array { base, .. } = module.types[variable.ty].inner else {
                panic!("{}: {} is no array", kernel.name, binding.name)
            };
            let scalar = match module.types[base].inner {
                TypeInner::Scalar(s) | TypeInner::Atomic(s) | TypeInner::Vector { scalar: s, .. } => s.kind,
                ref other => panic!("{}: {} holds {other:?}", kernel.name, binding.name),
            };
            let expected = match binding.element {
                Element::F32 => ScalarKind::Float,
                Element::U32 => ScalarKind::Uint,
            };
            assert_eq!(scalar, expected, "{}: {}", kernel.name, binding.name);
        }
        let bound = module.global_variables.iter().filter(|(_, g)| g.binding.is_some()).count();
        assert_eq!(bound, kernel.bindings.len() + 2, "{}: number of bindings", kernel.name);
        // WebGPU guarantees 8 storage buffers per stage; a writable state is one of them.
        let storage = kernel.bindings.len() + usize::from(kernel.state == StateAccess::ReadWrite);
        assert!(storage <= 8, "{}: {storage} storage buffers", kernel.name);

        assert_eq!(module.entry_points.len(), 1, "{}", kernel.name);
        assert_eq!(module.entry_points[0].name, "main", "{}", kernel.name);
        assert_eq!(module.entry_points[0].workgroup_size, kernel.workgroup_size, "{}", kernel.name);
        let [x, y, z] = kernel.workgroup_size;
        assert!(x * y * z <= 256, "{}: more invocations than WebGPU guarantees", kernel.name);
        let workgroup_memory: usize = module
            .global_variables
            .iter()
            .filter(|(_, g)| g.space == AddressSpace::WorkGroup)
            .map(|(_, g)| size_of_type(&module, g.ty).next_multiple_of(16))
            .sum();
        assert!(workgroup_memory <= 16_384, "{}: {workgroup_memory} bytes of workgroup memory", kernel.name);
    }
}

/// Chromium's and Firefox's compilers do not reset an uninitialised `var` when a loop comes round.
#[test]
fn every_function_scope_var_has_an_initialiser() {
    for kernel in kernels::all() {
        for (n, line) in kernel.wgsl().lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let indented = code.starts_with(' ');
            let declares = code.trim_start().starts_with("var ") || code.contains("(var ");
            assert!(!(indented && declares) || code.contains('='), "{} line {}: {line}", kernel.name, n + 1);
        }
    }
}

/// WGSL has no infinity, and a literal that overflows is a compile error in one browser only.
/// Extensions would bind the kernel to devices that have them.
#[test]
fn no_infinities_and_no_extensions() {
    for kernel in kernels::all() {
        let source = kernel.wgsl();
        for (n, line) in source.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let forbidden = ["inf", "0x7f8", "enable ", "requires ", "e39", "e40"];
            for word in forbidden {
                assert!(!code.contains(word), "{} line {}: {line}", kernel.name, n + 1);
            }
        }
    }
}
