//! The driver's calls that twins depend on, by CUPTI's callback ids, and where in their parameters what is.
//!
//! Ids and offsets are those of `gpu-probes/layouts`.

use super::super::calls::{Id, Index, driver, read};
use super::super::{RESOURCE_CONTEXT_DESTROYING, domain};
use crate::agent::Stream;
use std::ffi::c_void;

/// What kind of handle a program has of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// `CUmodule`, of one context.
    Module,
    /// `CUlibrary`, of all contexts.
    Library,
}

/// How a call describes a kernel node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeLayout {
    /// `CUDA_KERNEL_NODE_PARAMS_v1`.
    Function,
    /// `CUDA_KERNEL_NODE_PARAMS_v2`: the kernel may be a `CUkernel`, in a context of its own.
    Kernel,
    /// `CUgraphNodeParams`: any kind of node.
    Any,
}

/// What a call means for twins. Places are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Stores a handle where its first parameter points to; the second is the image.
    Load(Origin),
    /// Likewise from a file; the second is its path.
    LoadFile(Origin),
    /// Its only parameter is the handle.
    Unload(Origin),
    /// `cuLaunchKernel`. `per_thread`: whether the default stream is the thread's own.
    Launch { per_thread: bool },
    /// `cuLaunchKernelEx`, likewise.
    LaunchEx { per_thread: bool },
    /// `cuLaunchCooperativeKernel`, likewise: its first parameter is the kernel.
    Cooperative { per_thread: bool },
    /// Makes a kernel node, or changes it, as the parameter at this place points out.
    Node { at: usize, layout: NodeLayout },
    /// Stores what a kernel node is where its second parameter points to.
    GetNode(NodeLayout),
    /// `cuFuncSetAttribute`.
    SetFunctionAttribute,
    /// `cuKernelSetAttribute`.
    SetKernelAttribute,
    /// Its only parameter is a context, which it destroys.
    DestroyContext,
    /// Its only parameter is a GPU, whose primary context it may destroy.
    EndPrimary,
}

const fn node(at: usize, layout: NodeLayout) -> Role {
    Role::Node { at, layout }
}

/// The calls with a role.
#[rustfmt::skip]
pub const TWIN_IDS: &[Id<Role>] = &[
    driver(18, "cuModuleLoad", Role::LoadFile(Origin::Module)),
    driver(19, "cuModuleLoadData", Role::Load(Origin::Module)),
    driver(20, "cuModuleLoadDataEx", Role::Load(Origin::Module)),
    driver(21, "cuModuleLoadFatBinary", Role::Load(Origin::Module)),
    driver(678, "cuLibraryLoadData", Role::Load(Origin::Library)),
    driver(679, "cuLibraryLoadFromFile", Role::LoadFile(Origin::Library)),
    driver(22, "cuModuleUnload", Role::Unload(Origin::Module)),
    driver(680, "cuLibraryUnload", Role::Unload(Origin::Library)),
    driver(307, "cuLaunchKernel", Role::Launch { per_thread: false }),
    driver(442, "cuLaunchKernel_ptsz", Role::Launch { per_thread: true }),
    driver(652, "cuLaunchKernelEx", Role::LaunchEx { per_thread: false }),
    driver(653, "cuLaunchKernelEx_ptsz", Role::LaunchEx { per_thread: true }),
    driver(477, "cuLaunchCooperativeKernel", Role::Cooperative { per_thread: false }),
    driver(478, "cuLaunchCooperativeKernel_ptsz", Role::Cooperative { per_thread: true }),
    driver(502, "cuGraphAddKernelNode", node(32, NodeLayout::Function)),
    driver(689, "cuGraphAddKernelNode_v2", node(32, NodeLayout::Kernel)),
    driver(521, "cuGraphKernelNodeSetParams", node(8, NodeLayout::Function)),
    driver(691, "cuGraphKernelNodeSetParams_v2", node(8, NodeLayout::Kernel)),
    driver(538, "cuGraphExecKernelNodeSetParams", node(16, NodeLayout::Function)),
    driver(692, "cuGraphExecKernelNodeSetParams_v2", node(16, NodeLayout::Kernel)),
    driver(712, "cuGraphAddNode", node(32, NodeLayout::Any)),
    driver(723, "cuGraphAddNode_v2", node(40, NodeLayout::Any)),
    driver(713, "cuGraphNodeSetParams", node(8, NodeLayout::Any)),
    driver(714, "cuGraphExecNodeSetParams", node(16, NodeLayout::Any)),
    driver(503, "cuGraphKernelNodeGetParams", Role::GetNode(NodeLayout::Function)),
    driver(690, "cuGraphKernelNodeGetParams_v2", Role::GetNode(NodeLayout::Kernel)),
    driver(481, "cuFuncSetAttribute", Role::SetFunctionAttribute),
    driver(687, "cuKernelSetAttribute", Role::SetKernelAttribute),
    driver(11, "cuCtxDestroy", Role::DestroyContext),
    driver(322, "cuCtxDestroy_v2", Role::DestroyContext),
    driver(387, "cuDevicePrimaryCtxRelease", Role::EndPrimary),
    driver(544, "cuDevicePrimaryCtxRelease_v2", Role::EndPrimary),
    driver(389, "cuDevicePrimaryCtxReset", Role::EndPrimary),
    driver(545, "cuDevicePrimaryCtxReset_v2", Role::EndPrimary),
];

/// Returns the role of a callback id, if it has one.
#[inline]
pub(super) fn role_of(domain: u32, id: u32) -> Option<Role> {
    static INDEX: Index = Index::of(TWIN_IDS);
    INDEX.get(domain, id).map(|at| TWIN_IDS[at].call)
}

/// All ids that are watched.
pub(super) fn watched() -> impl Iterator<Item = (u32, u32)> {
    let calls = TWIN_IDS.iter().map(|it| (it.domain, it.id));
    calls.chain([(domain::RESOURCE, RESOURCE_CONTEXT_DESTROYING)])
}

/// Byte offsets in parameters, and in what they point at.
pub mod offset {
    pub mod launch {
        pub const KERNEL: usize = 0;
        pub const GRID: usize = 8;
        pub const BLOCK: usize = 20;
        pub const SHARED: usize = 32;
        pub const STREAM: usize = 40;
    }

    pub mod launch_ex {
        pub const CONFIG: usize = 0;
        pub const KERNEL: usize = 8;
    }

    /// `CUlaunchConfig`.
    pub mod config {
        pub const GRID: usize = 0;
        pub const BLOCK: usize = 12;
        pub const SHARED: usize = 24;
        pub const STREAM: usize = 32;
        pub const ATTRIBUTES: usize = 40;
        pub const ATTRIBUTES_LEN: usize = 48;
    }

    /// `CUlaunchAttribute`.
    pub mod attribute {
        pub const ID: usize = 0;
        pub const VALUE: usize = 8;
        pub const BYTES: usize = 72;
    }

    /// `CUDA_KERNEL_NODE_PARAMS_v2`, with which `_v1` begins.
    pub mod node {
        pub const FUNCTION: usize = 0;
        pub const GRID: usize = 8;
        pub const BLOCK: usize = 20;
        pub const SHARED: usize = 32;
        pub const KERNEL: usize = 56;
        pub const CONTEXT: usize = 64;
    }

    /// `CUgraphNodeParams`.
    pub mod any_node {
        pub const TYPE: usize = 0;
        pub const KERNEL_NODE: usize = 16;
    }
}

/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`.
const ATTRIBUTE_COOPERATIVE: u32 = 2;
/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`.
const ATTRIBUTE_CLUSTER: u32 = 4;
/// No launch has as many.
const MOST_ATTRIBUTES: u32 = 64;

/// A kernel in a call's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kernel {
    pub(super) handle: u64,
    /// Blocks of the grid.
    pub(super) blocks: u64,
    /// Threads of a block.
    pub(super) threads: u64,
    /// Bytes of dynamic shared memory.
    pub(super) shared: u32,
    pub(super) is_cooperative: bool,
    /// Whether the launch itself groups its blocks into clusters.
    pub(super) has_clusters: bool,
    /// `None` of a node.
    pub(super) stream: Option<Stream>,
    /// The context that a node names, 0 if it doesn't.
    pub(super) context: u64,
}

/// Returns how many blocks a grid has, or threads a block, from its three extents.
///
/// # Safety
/// 12 bytes at `base + offset` are readable.
unsafe fn volume(base: *const u8, offset: usize) -> u64 {
    // SAFETY: the caller's promise.
    let [x, y, z]: [u32; 3] = unsafe { read(base, offset) };
    u64::from(x).saturating_mul(y.into()).saturating_mul(z.into())
}

/// Reads a launch; `None` if its parameters are not as expected.
///
/// # Safety
/// `params` is null or points at the parameters of a call with this role, a launch.
pub(super) unsafe fn launch(role: Role, params: *const c_void) -> Option<Kernel> {
    let at = params.cast::<u8>();
    if at.is_null() {
        return None;
    }
    // SAFETY: the caller's promise, and the offsets of the layouts.
    unsafe {
        match role {
            Role::Launch { per_thread } | Role::Cooperative { per_thread } => Some(Kernel {
                handle: read(at, offset::launch::KERNEL),
                blocks: volume(at, offset::launch::GRID),
                threads: volume(at, offset::launch::BLOCK),
                shared: read(at, offset::launch::SHARED),
                is_cooperative: matches!(role, Role::Cooperative { .. }),
                has_clusters: false,
                stream: Some(Stream { handle: read(at, offset::launch::STREAM), per_thread }),
                context: 0,
            }),
            Role::LaunchEx { per_thread } => {
                let config: *const u8 = read(at, offset::launch_ex::CONFIG);
                (!config.is_null()).then(|| Kernel {
                    handle: read(at, offset::launch_ex::KERNEL),
                    blocks: volume(config, offset::config::GRID),
                    threads: volume(config, offset::config::BLOCK),
                    shared: read(config, offset::config::SHARED),
                    is_cooperative: has_attribute(config, ATTRIBUTE_COOPERATIVE),
                    has_clusters: has_attribute(config, ATTRIBUTE_CLUSTER),
                    stream: Some(Stream { handle: read(config, offset::config::STREAM), per_thread }),
                    context: 0,
                })
            }
            _ => None,
        }
    }
}

/// Whether a launch has this attribute, whose value begins with a number other than 0.
///
/// # Safety
/// `config` points at a `CUlaunchConfig`.
unsafe fn has_attribute(config: *const u8, id: u32) -> bool {
    // SAFETY: the caller's promise, and the offsets of the layouts.
    let (attributes, n): (*const u8, u32) =
        unsafe { (read(config, offset::config::ATTRIBUTES), read(config, offset::config::ATTRIBUTES_LEN)) };
    // SAFETY: as many attributes as the launch says that it has.
    let is_it = |it: usize| unsafe {
        let attribute = attributes.add(it * offset::attribute::BYTES);
        read::<u32>(attribute, offset::attribute::ID) == id && read::<i32>(attribute, offset::attribute::VALUE) != 0
    };
    !attributes.is_null() && (0..n.min(MOST_ATTRIBUTES) as usize).any(is_it)
}

/// Returns where a launch has its kernel.
pub(super) fn place_of_kernel(role: Role) -> usize {
    if let Role::LaunchEx { .. } = role { offset::launch_ex::KERNEL } else { offset::launch::KERNEL }
}

/// The largest of the structures that describe a node: `CUgraphNodeParams`.
pub(super) const MOST_NODE_BYTES: usize = 256;
/// `CU_GRAPH_NODE_TYPE_KERNEL`.
const NODE_IS_KERNEL: u32 = 0;

impl NodeLayout {
    /// Size of the structure.
    pub const fn size(self) -> usize {
        match self {
            NodeLayout::Function => 56,
            NodeLayout::Kernel => 72,
            NodeLayout::Any => MOST_NODE_BYTES,
        }
    }

    /// Where in it the kernel node is described.
    const fn kernel_node(self) -> usize {
        if let NodeLayout::Any = self { offset::any_node::KERNEL_NODE } else { 0 }
    }
}

/// Reads a node; `None` if it is none of a kernel. Also returns the place of the kernel's handle in the structure.
///
/// # Safety
/// `node` points at a structure of this layout.
pub(super) unsafe fn node_kernel(layout: NodeLayout, node: *const u8) -> Option<(Kernel, usize)> {
    let at = layout.kernel_node();
    // SAFETY: the caller's promise, and the offsets of the layouts.
    unsafe {
        if layout == NodeLayout::Any && read::<u32>(node, offset::any_node::TYPE) != NODE_IS_KERNEL {
            return None;
        }
        let has_kernel = layout != NodeLayout::Function;
        let (function, kernel) = (at + offset::node::FUNCTION, at + offset::node::KERNEL);
        let place = if has_kernel && read::<u64>(node, function) == 0 { kernel } else { function };
        let kernel = Kernel {
            handle: read(node, place),
            blocks: volume(node, at + offset::node::GRID),
            threads: volume(node, at + offset::node::BLOCK),
            shared: read(node, at + offset::node::SHARED),
            is_cooperative: false,
            has_clusters: false,
            stream: None,
            context: if has_kernel { read(node, at + offset::node::CONTEXT) } else { 0 },
        };
        Some((kernel, place))
    }
}

/// Returns the places of handles in a structure that describes a kernel node.
pub(super) fn node_handles(layout: NodeLayout) -> &'static [usize] {
    match layout {
        NodeLayout::Function => &[offset::node::FUNCTION],
        NodeLayout::Kernel | NodeLayout::Any => &[offset::node::FUNCTION, offset::node::KERNEL],
    }
}
