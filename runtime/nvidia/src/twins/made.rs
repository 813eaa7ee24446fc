//! What is asked of the threads that make twins, and what they make.

use anyhow::Result;
use std::collections::BTreeMap;
use xputrace_boundary::user::Account;
use xputrace_cubins::Cubin;
use xputrace_model::object::LaunchShape;
use xputrace_model::plan::DeviceWay;
use xputrace_pipeline::ProcessIndex;
use xputrace_rendezvous::{LoadedImage, Peer};
use xputrace_twins::{ProgramsText, TwinText};
use xputrace_wire::device::Woven;
use xputrace_wire::device::{PatchPoint, PatchedKernel};

/// The process that has loaded an image.
#[derive(Clone, Copy, Debug)]
pub struct Requester {
    pub process: ProcessIndex,
    pub pid: u32,
    /// How handlers get into its kernels.
    pub way: DeviceWay,
    /// Whose code it runs. Asked of the system when it connected: it may be another program by now.
    pub(super) account: Account,
}

impl Requester {
    pub fn of(process: ProcessIndex, Peer { pid, uid, gid, .. }: Peer, way: DeviceWay) -> Self {
        Requester { process, pid, way, account: Account { uid, gid } }
    }
}

/// An image whose twin is to be made.
pub struct TwinRequest {
    pub image: LoadedImage,
    pub requester: Requester,
}

/// What came of it.
pub struct TwinResult {
    pub requester: Requester,
    /// The collector's number for the image.
    pub number: u64,
    pub outcome: Result<TwinOutcome>,
}

/// What there is for an image.
pub enum TwinOutcome {
    Twins(CompiledTwins),
    Patches(CompiledPatches),
    Programs(CompiledPrograms),
    /// Programs can't be kernels, as this says.
    NoPrograms(String),
    /// Neither, as this says.
    Not(Woven),
}

/// The twins of an image. Has a twin or a kernel without one.
#[derive(Default)]
pub struct CompiledTwins {
    pub twins: Vec<CompiledTwin>,
    /// Why kernels have none that should get handlers, by their symbols.
    pub refused: BTreeMap<String, anyhow::Error>,
}

/// A twin that lacks only what changes from run to run.
pub struct CompiledTwin {
    pub text: TwinText,
    pub code: TwinCode,
}

/// A program that runs in a kernel of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnLaunch {
    /// The handler's index.
    pub handler: usize,
    pub shape: LaunchShape,
}

/// Programs that run in kernels of their own.
pub struct CompiledPrograms {
    pub text: ProgramsText,
    pub code: TwinCode,
}

/// Patches that lack only what changes from run to run.
pub struct CompiledPatches {
    pub code: Compiled,
    pub points: Vec<PatchPoint>,
    /// Without the ids of their names.
    pub kernels: Vec<PatchedKernel>,
    /// Why others have no handlers, by symbol.
    pub refused: BTreeMap<String, anyhow::Error>,
}

/// What the driver gets.
pub enum TwinCode {
    Cubin(Compiled),
    /// The text, which it compiles itself.
    Text(WhyText),
}

/// Machine code, made here.
pub struct Compiled {
    pub cubin: Cubin,
    /// Why the next run won't find it.
    pub unkept: Option<String>,
}

/// Why a text was not compiled here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhyText {
    /// The process has GPUs of several kinds, or of one that is not known.
    Gpus,
    /// The process belongs to a user whom we can't become.
    OtherUser(u32),
    /// There is no `ptxas` that can. Says of each why.
    NoPtxas(Vec<String>),
    /// The `ptxas` says this.
    Failed(String),
}
