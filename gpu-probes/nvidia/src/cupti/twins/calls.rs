//! The driver's calls that twins depend on, by CUPTI's callback ids, and where in their parameters what is.
//!
//! Ids and offsets are those of `gpu-probes/layouts`.

use super::super::calls::{Id, Index, driver, read};
use super::super::{RESOURCE_CONTEXT_DESTROYING, domain};
use std::ffi::c_void;
use std::mem::offset_of;
use xputrace_agent::Stream;

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
pub enum TwinCallRole {
    /// Stores a handle where its first parameter points to; the second is the image.
    Load(Origin),
    /// The same from a file; the second parameter is its path.
    LoadFile(Origin),
    /// Its only parameter is the handle.
    Unload(Origin),
    /// `cuLaunchKernel`. `per_thread`: whether the default stream is the thread's own.
    Launch { per_thread: bool },
    /// `cuLaunchKernelEx`.
    LaunchEx { per_thread: bool },
    /// `cuLaunchCooperativeKernel`: its first parameter is the kernel.
    Cooperative { per_thread: bool },
    /// Makes a kernel node, or changes it, as the parameter at this place points out. The one before is the node that is changed.
    Node { at: usize, layout: NodeLayout, changes: bool },
    /// Changes the attributes of a kernel node, its first parameter.
    NodeAttributes,
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

const fn new_node(at: usize, layout: NodeLayout) -> TwinCallRole {
    TwinCallRole::Node { at, layout, changes: false }
}

const fn node(at: usize, layout: NodeLayout) -> TwinCallRole {
    TwinCallRole::Node { at, layout, changes: true }
}

/// The calls with a role.
#[rustfmt::skip]
pub const TWIN_IDS: &[Id<TwinCallRole>] = &[
    driver(18, "cuModuleLoad", TwinCallRole::LoadFile(Origin::Module)),
    driver(19, "cuModuleLoadData", TwinCallRole::Load(Origin::Module)),
    driver(20, "cuModuleLoadDataEx", TwinCallRole::Load(Origin::Module)),
    driver(21, "cuModuleLoadFatBinary", TwinCallRole::Load(Origin::Module)),
    driver(678, "cuLibraryLoadData", TwinCallRole::Load(Origin::Library)),
    driver(679, "cuLibraryLoadFromFile", TwinCallRole::LoadFile(Origin::Library)),
    driver(22, "cuModuleUnload", TwinCallRole::Unload(Origin::Module)),
    driver(680, "cuLibraryUnload", TwinCallRole::Unload(Origin::Library)),
    driver(307, "cuLaunchKernel", TwinCallRole::Launch { per_thread: false }),
    driver(442, "cuLaunchKernel_ptsz", TwinCallRole::Launch { per_thread: true }),
    driver(652, "cuLaunchKernelEx", TwinCallRole::LaunchEx { per_thread: false }),
    driver(653, "cuLaunchKernelEx_ptsz", TwinCallRole::LaunchEx { per_thread: true }),
    driver(477, "cuLaunchCooperativeKernel", TwinCallRole::Cooperative { per_thread: false }),
    driver(478, "cuLaunchCooperativeKernel_ptsz", TwinCallRole::Cooperative { per_thread: true }),
    driver(502, "cuGraphAddKernelNode", new_node(32, NodeLayout::Function)),
    driver(689, "cuGraphAddKernelNode_v2", new_node(32, NodeLayout::Kernel)),
    driver(521, "cuGraphKernelNodeSetParams", node(8, NodeLayout::Function)),
    driver(691, "cuGraphKernelNodeSetParams_v2", node(8, NodeLayout::Kernel)),
    driver(538, "cuGraphExecKernelNodeSetParams", node(16, NodeLayout::Function)),
    driver(692, "cuGraphExecKernelNodeSetParams_v2", node(16, NodeLayout::Kernel)),
    driver(712, "cuGraphAddNode", new_node(32, NodeLayout::Any)),
    driver(723, "cuGraphAddNode_v2", new_node(40, NodeLayout::Any)),
    driver(713, "cuGraphNodeSetParams", node(8, NodeLayout::Any)),
    driver(714, "cuGraphExecNodeSetParams", node(16, NodeLayout::Any)),
    driver(571, "cuGraphKernelNodeSetAttribute", TwinCallRole::NodeAttributes),
    driver(569, "cuGraphKernelNodeCopyAttributes", TwinCallRole::NodeAttributes),
    driver(503, "cuGraphKernelNodeGetParams", TwinCallRole::GetNode(NodeLayout::Function)),
    driver(690, "cuGraphKernelNodeGetParams_v2", TwinCallRole::GetNode(NodeLayout::Kernel)),
    driver(481, "cuFuncSetAttribute", TwinCallRole::SetFunctionAttribute),
    driver(687, "cuKernelSetAttribute", TwinCallRole::SetKernelAttribute),
    driver(11, "cuCtxDestroy", TwinCallRole::DestroyContext),
    driver(322, "cuCtxDestroy_v2", TwinCallRole::DestroyContext),
    driver(387, "cuDevicePrimaryCtxRelease", TwinCallRole::EndPrimary),
    driver(544, "cuDevicePrimaryCtxRelease_v2", TwinCallRole::EndPrimary),
    driver(389, "cuDevicePrimaryCtxReset", TwinCallRole::EndPrimary),
    driver(545, "cuDevicePrimaryCtxReset_v2", TwinCallRole::EndPrimary),
];

/// Returns the role of a callback id, if it has one.
#[inline]
pub(super) fn role_of(domain: u32, id: u32) -> Option<TwinCallRole> {
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
        pub const VALUES: usize = 48;
        /// Not of a cooperative launch.
        pub const EXTRA: usize = 56;
    }

    pub mod launch_ex {
        pub const CONFIG: usize = 0;
        pub const KERNEL: usize = 8;
        pub const VALUES: usize = 16;
        pub const EXTRA: usize = 24;
    }

    /// `CUlaunchConfig`.
    pub mod config {
        pub const GRID: usize = 0;
        pub const BLOCK: usize = 12;
        pub const SHARED: usize = 24;
        pub const STREAM: usize = 32;
        pub const ATTRIBUTES: usize = 40;
        pub const ATTRIBUTES_LEN: usize = 48;
        pub const BYTES: usize = 56;
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
pub(super) const ATTRIBUTE_CLUSTER: u32 = 4;
/// No launch has as many.
const MOST_ATTRIBUTES: u32 = 64;

/// In x, y and z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Extents(pub(super) [u32; 3]);

impl Extents {
    pub(super) fn volume(self) -> u64 {
        self.0.iter().fold(1, |all, it| all.saturating_mul((*it).into()))
    }

    /// # Safety
    /// 12 bytes at `base + offset` are readable.
    unsafe fn read(base: *const u8, offset: usize) -> Self {
        // SAFETY: the caller promises that 12 bytes are readable there.
        Extents(unsafe { read(base, offset) })
    }
}

/// A kernel in a call's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kernel {
    pub(super) handle: u64,
    /// In blocks.
    pub(super) grid: Extents,
    /// In threads.
    pub(super) block: Extents,
    /// Bytes of dynamic shared memory.
    pub(super) shared: u32,
    pub(super) is_cooperative: bool,
    /// In blocks, where the launch itself groups them.
    pub(super) cluster: Option<Extents>,
    /// `None` of a node.
    pub(super) stream: Option<Stream>,
    /// The context that a node names, 0 if it doesn't.
    pub(super) context: u64,
    /// The node that the call changes, 0 if it makes one or is a launch.
    pub(super) node: u64,
}

/// A `CUlaunchConfig`.
#[repr(C)]
struct LaunchConfig {
    grid: Extents,
    block: Extents,
    shared: u32,
    /// 0: the current context's.
    stream: u64,
    attributes: *const LaunchAttribute,
    n_attributes: u32,
}

/// A `CUlaunchAttribute`.
#[repr(C)]
struct LaunchAttribute {
    id: u32,
    padding: u32,
    extents: Extents,
    rest: [u32; 13],
}

const _: () = {
    assert!(size_of::<LaunchConfig>() == offset::config::BYTES);
    assert!(offset_of!(LaunchConfig, block) == offset::config::BLOCK);
    assert!(offset_of!(LaunchConfig, shared) == offset::config::SHARED);
    assert!(offset_of!(LaunchConfig, stream) == offset::config::STREAM);
    assert!(offset_of!(LaunchConfig, attributes) == offset::config::ATTRIBUTES);
    assert!(offset_of!(LaunchConfig, n_attributes) == offset::config::ATTRIBUTES_LEN);
    assert!(size_of::<LaunchAttribute>() == offset::attribute::BYTES);
    assert!(offset_of!(LaunchAttribute, extents) == offset::attribute::VALUE);
};

impl Kernel {
    /// Calls this with a `CUlaunchConfig` of such a launch, in the current context. Of its attributes it has the cluster alone,
    /// unless the kernel has that itself.
    pub(super) fn with_config<R>(&self, call: impl FnOnce(*const c_void) -> R) -> R {
        let attribute = |extents| LaunchAttribute { id: ATTRIBUTE_CLUSTER, padding: 0, extents, rest: [0; 13] };
        let attributes = self.cluster.map(attribute);
        let attributes = attributes.as_slice();
        let config = LaunchConfig {
            grid: self.grid,
            block: self.block,
            shared: self.shared,
            stream: 0,
            attributes: attributes.as_ptr(),
            n_attributes: attributes.len() as u32,
        };
        call((&raw const config).cast())
    }
}

/// Reads a launch; `None` if its parameters are not as expected.
///
/// # Safety
/// `params` is null or points at the parameters of a call with this role, a launch.
pub(super) unsafe fn launch(role: TwinCallRole, params: *const c_void) -> Option<Kernel> {
    let at = params.cast::<u8>();
    if at.is_null() {
        return None;
    }
    // SAFETY: the caller promises that `params`, which is not null here, points at the parameters of a launch with this
    // role, which have these fields at the offsets of its layout.
    unsafe {
        match role {
            TwinCallRole::Launch { per_thread } | TwinCallRole::Cooperative { per_thread } => Some(Kernel {
                handle: read(at, offset::launch::KERNEL),
                grid: Extents::read(at, offset::launch::GRID),
                block: Extents::read(at, offset::launch::BLOCK),
                shared: read(at, offset::launch::SHARED),
                is_cooperative: matches!(role, TwinCallRole::Cooperative { .. }),
                cluster: None,
                stream: Some(Stream { handle: read(at, offset::launch::STREAM), per_thread }),
                context: 0,
                node: 0,
            }),
            TwinCallRole::LaunchEx { per_thread } => {
                let config: *const u8 = read(at, offset::launch_ex::CONFIG);
                (!config.is_null()).then(|| Kernel {
                    handle: read(at, offset::launch_ex::KERNEL),
                    grid: Extents::read(config, offset::config::GRID),
                    block: Extents::read(config, offset::config::BLOCK),
                    shared: read(config, offset::config::SHARED),
                    is_cooperative: attribute(config, ATTRIBUTE_COOPERATIVE).is_some(),
                    cluster: attribute(config, ATTRIBUTE_CLUSTER).map(|it| Extents::read(it, 0)),
                    stream: Some(Stream { handle: read(config, offset::config::STREAM), per_thread }),
                    context: 0,
                    node: 0,
                })
            }
            _ => None,
        }
    }
}

/// Returns where an attribute of a launch has its value, if that begins with a number other than 0.
///
/// # Safety
/// `config` points at a `CUlaunchConfig`.
unsafe fn attribute(config: *const u8, id: u32) -> Option<*const u8> {
    // SAFETY: the caller promises that `config` points at a `CUlaunchConfig`, which has these fields at the offsets of
    // its layout.
    let (attributes, n): (*const u8, u32) =
        unsafe { (read(config, offset::config::ATTRIBUTES), read(config, offset::config::ATTRIBUTES_LEN)) };
    // SAFETY: as many attributes as the launch says that it has.
    let value = |it: usize| unsafe {
        let attribute = attributes.add(it * offset::attribute::BYTES);
        let value = attribute.add(offset::attribute::VALUE);
        (read::<u32>(attribute, offset::attribute::ID) == id && read::<i32>(value, 0) != 0).then_some(value)
    };
    let n = if attributes.is_null() { 0 } else { n.min(MOST_ATTRIBUTES) };
    (0..n as usize).find_map(value)
}

/// Returns where a launch has its kernel.
pub(super) fn place_of_kernel(role: TwinCallRole) -> usize {
    if let TwinCallRole::LaunchEx { .. } = role { offset::launch_ex::KERNEL } else { offset::launch::KERNEL }
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
    // SAFETY: the caller promises that `node` points at a structure of this layout, which has these fields at its
    // offsets.
    unsafe {
        if layout == NodeLayout::Any && read::<u32>(node, offset::any_node::TYPE) != NODE_IS_KERNEL {
            return None;
        }
        let has_kernel = layout != NodeLayout::Function;
        let (function, kernel) = (at + offset::node::FUNCTION, at + offset::node::KERNEL);
        let place = if has_kernel && read::<u64>(node, function) == 0 { kernel } else { function };
        let kernel = Kernel {
            handle: read(node, place),
            grid: Extents::read(node, at + offset::node::GRID),
            block: Extents::read(node, at + offset::node::BLOCK),
            shared: read(node, at + offset::node::SHARED),
            is_cooperative: false,
            cluster: None,
            stream: None,
            context: if has_kernel { read(node, at + offset::node::CONTEXT) } else { 0 },
            node: 0,
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
