//! Makes a twin: what the threads do.

use super::files::{Elsewhere, ProgramFiles};
use super::made::{
    Compiled, CompiledPatches, CompiledPrograms, CompiledTwin, CompiledTwins, OwnLaunch, Requester, TwinCode,
    TwinOutcome, TwinRequest, TwinResult, WhyText,
};
use super::triton::TritonCaches;
use super::{tally, toolkit};
use anyhow::{Context, Result, anyhow, bail};
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use xputrace_boundary::child::Limit;
use xputrace_boundary::user::Account;
use xputrace_cubins::{Compiler, NoCubin, Order, Purpose, StackUsage};
use xputrace_model::object::LaunchShape;
use xputrace_model::plan::{Detail, DeviceWay, PatternOfHandler, Plan};
use xputrace_rendezvous::LoadedImage;
use xputrace_twins::{
    Gpu, ImageTwins, Maker, NoTwin, ProgramKernel, ProgramsText, TwinText, Wanted, kernels_of, parameters_of,
};
use xputrace_wire::device::{
    CHOICES, Choice, Codec, ComputeCapabilities, Parameter, Parameters, PatchedKernel, Portability, PortableCode,
    ProgramLaunch, Programs, original_symbol,
};
use xputrace_wire::device::{LoadedCode, Woven};

/// How long a `ptxas` may run. Longer than programs wait: the next run finds the cubin.
const COMPILES_WITHIN: Duration = Duration::from_secs(60);

/// Returns the symbol of the kernel that is launched so.
fn own_symbol(launch: usize) -> String {
    format!("xpt_program_{launch}")
}

/// What twins are made with.
pub struct Making {
    pub maker: Maker,
    /// Whether patches take the times of all kernels.
    pub takes_times: bool,
    /// The kernels of each handler; of those that run in kernels of their own, which come last, none.
    kernels: Vec<PatternOfHandler>,
    /// What runs in kernels of its own, in this order.
    pub launches: Vec<OwnLaunch>,
    compiler: Compiler,
    triton: TritonCaches,
    files: ProgramFiles,
    /// Shared by threads whose text is compiled now, or looked for in the cache.
    compiling: Arc<()>,
    /// Set when the run is over.
    pub is_over: AtomicBool,
}

impl Making {
    pub fn new(maker: Maker, plan: &Plan, kernels: Vec<PatternOfHandler>, launches: Vec<OwnLaunch>) -> Self {
        Making {
            maker,
            takes_times: plan.demand.has(Detail::PatchedKernels),
            kernels,
            launches,
            compiler: Compiler::default(),
            triton: TritonCaches::default(),
            files: ProgramFiles::default(),
            compiling: Arc::default(),
            is_over: AtomicBool::new(false),
        }
    }

    /// Returns how many texts are compiled now.
    pub fn n_compiling(&self) -> usize {
        Arc::strong_count(&self.compiling) - 1
    }

    /// Makes a twin or patches, or says why there are none.
    pub fn make(&self, TwinRequest { image, requester }: TwinRequest) -> TwinResult {
        let number = image.number;
        // A process waits for the answer, whatever its code does to us.
        let made = catch_unwind(AssertUnwindSafe(|| match requester.way {
            _ if image.is_context() => Ok(self.programs(&image, requester)),
            DeviceWay::Twin => self.twin(image, requester),
            DeviceWay::Patch => self.patches(image, requester),
        }));
        TwinResult {
            requester,
            number,
            outcome: made.unwrap_or_else(|_| Err(anyhow!("making a twin of its kernels failed"))),
        }
    }

    fn twin(&self, image: LoadedImage, requester: Requester) -> Result<TwinOutcome> {
        let capabilities = image.capabilities;
        let gpu = Gpu { capability: capabilities.least };
        let woven = image.read(|loaded| match loaded {
            LoadedCode::Portable(modules) => Ok(Ok(self.weave(modules, gpu)?)),
            LoadedCode::Cubin(cubin) => match self.triton.ptx_of(requester.pid, cubin) {
                Some(ptx) => Ok(Ok(self.weave(&[plain(&ptx)], gpu)?)),
                None => Ok(Err(Woven::NoPortableCode)),
            },
            LoadedCode::Kernel(symbol) => self.weave_early(symbol, requester.pid, gpu),
            // Not one of the program's.
            LoadedCode::Context => Ok(Err(Woven::Nothing)),
        });
        let ImageTwins { texts, refused } = match woven.context("reading what the program has loaded")?? {
            Ok(twins) => twins,
            Err(why) => return Ok(TwinOutcome::Not(why)),
        };
        let refused = refused.into_iter().map(|(kernel, why)| (kernel, why.into())).collect();
        let mut twins = CompiledTwins { twins: Vec::new(), refused };
        for text in texts {
            match self.code_of(&text, capabilities, requester) {
                Ok(code) => twins.twins.push(CompiledTwin { text, code }),
                Err(why) => twins.refused.extend(text.kernels.into_iter().map(|it| (it, anyhow!("{why}")))),
            }
        }
        let is_nothing = twins.twins.is_empty() && twins.refused.is_empty();
        Ok(if is_nothing { TwinOutcome::Not(Woven::Nothing) } else { TwinOutcome::Twins(twins) })
    }

    /// Compiles a twin, or says why its kernels have none.
    fn code_of(
        &self,
        text: &TwinText,
        capabilities: ComputeCapabilities,
        requester: Requester,
    ) -> Result<TwinCode, String> {
        let compile = |it: &str| {
            self.compile(
                PtxSource { text: it, target: &text.target, purpose: Purpose::Module },
                capabilities,
                requester,
            )
        };
        let Some(original) = &text.recursive_original else {
            return Ok(compile(&text.text).map_or_else(TwinCode::Text, TwinCode::Cubin));
        };
        let unknown = |why: WhyText| {
            format!(
                "it may call itself, so its twin may take no more stack than it does, which is not known: {}",
                tally::reason(&why)
            )
        };
        let twin = compile(&text.text).map_err(unknown)?;
        let original = compile(original).map_err(unknown)?;
        match larger_frame(&twin.cubin.frames, &original.cubin.frames) {
            None => Ok(TwinCode::Cubin(twin)),
            Some((function, bytes, most_bytes)) => Err(format!(
                "it may call itself, so its twin may take no more stack than it does: {} would take {bytes} bytes a call \
                 instead of {most_bytes}",
                xputrace_symbols::demangle(function).name
            )),
        }
    }

    /// Makes kernels of what runs in kernels of its own.
    fn programs(&self, image: &LoadedImage, requester: Requester) -> TwinOutcome {
        let text = match self.programs_text(image.capabilities.least) {
            Ok(text) => text,
            Err(error) => return TwinOutcome::NoPrograms(format!("{error:#}")),
        };
        let source = PtxSource { text: &text.text, target: &text.target, purpose: Purpose::Module };
        let code = self.compile(source, image.capabilities, requester).map_or_else(TwinCode::Text, TwinCode::Cubin);
        TwinOutcome::Programs(CompiledPrograms { text, code })
    }

    /// Returns their text, for GPUs of this compute capability.
    pub(super) fn programs_text(&self, capability: u32) -> Result<ProgramsText> {
        let kernel = |(at, it): (usize, &OwnLaunch)| ProgramKernel {
            handler: it.handler,
            symbol: own_symbol(at),
            block: it.shape.block,
        };
        let kernels: Vec<ProgramKernel> = self.launches.iter().enumerate().map(kernel).collect();
        let text = self.maker.programs(&kernels, capability);
        text.map_err(|it| anyhow!("as a kernel, a program can't run: {}", it.what))
    }

    /// Returns what a process gets to run in kernels of its own.
    pub fn sent(&self, CompiledPrograms { text, code }: CompiledPrograms) -> Programs {
        let code = match code {
            TwinCode::Cubin(it) => it.cubin.code,
            TwinCode::Text(_) => text.as_code(),
        };
        let launch = |(at, OwnLaunch { shape: LaunchShape { grid, block }, .. }): (usize, &OwnLaunch)| ProgramLaunch {
            symbol: own_symbol(at),
            grid: *grid,
            block: *block,
        };
        Programs { code, launches: self.launches.iter().enumerate().map(launch).collect() }
    }

    fn patches(&self, image: LoadedImage, requester: Requester) -> Result<TwinOutcome> {
        let capabilities = image.capabilities;
        let mut refused = BTreeMap::new();
        let wanted = image.read(|loaded| match loaded {
            LoadedCode::Portable(_) | LoadedCode::Kernel(_) | LoadedCode::Context => Ok(Vec::new()),
            LoadedCode::Cubin(cubin) => {
                let reads_any = self.maker.reads_arguments();
                let parameters = if reads_any { parameters_of(cubin.bytes)? } else { HashMap::new() };
                let patched = |symbol: &String| {
                    let patched = self.patched(symbol, parameters.get(symbol).map(Vec::as_slice));
                    patched.unwrap_or_else(|why| {
                        refused.insert(symbol.clone(), why);
                        None
                    })
                };
                anyhow::Ok(kernels_of(cubin.bytes)?.iter().filter_map(patched).collect())
            }
        });
        let kernels: Vec<PatchedKernel> = wanted.context("reading what the program has loaded")??;
        if kernels.is_empty()
            && let Some((symbol, why)) = refused.pop_first()
        {
            return Err(why.context(in_kernel(&symbol)));
        }
        if kernels.is_empty() && !self.takes_times {
            return Ok(TwinOutcome::Not(Woven::Nothing));
        }
        let text = self
            .maker
            .patches(capabilities.least, self.takes_times)
            .map_err(|it| anyhow!("a handler can't run there: {}", it.what))?;
        let source = PtxSource { text: &text.text, target: &text.target, purpose: Purpose::Patch };
        let code = self.compile(source, capabilities, requester);
        let code = code.map_err(|why| match why {
            WhyText::Failed(why) => anyhow!("ptxas does not compile the patches of machine code: {why}"),
            why => anyhow!(tally::lacking_for_patches(&why)),
        })?;
        Ok(TwinOutcome::Patches(CompiledPatches { code, points: text.points, kernels, refused }))
    }

    /// Returns a kernel with its handlers, if it has any; `parameters` are what its code tells of its own.
    fn patched(&self, symbol: &str, parameters: Option<&[Parameter]>) -> Result<Option<PatchedKernel>> {
        let Some(wanted) = self.wanted(symbol) else { return Ok(None) };
        let choices = self.maker.choices(&wanted)?;
        let conditions = Choice { holding: 0, ..choices.first().map(|it| it.0).unwrap_or_default() };
        let (mut handlers, mut reading) = ([0; CHOICES], 0);
        for (Choice { holding, .. }, wanted) in &choices {
            handlers[usize::from(*holding)] = wanted.handlers.iter().fold(0, |all, it| all | 1 << it);
            reading |= u8::from(self.maker.arguments_of(wanted) != 0) << holding;
        }
        let read = self.maker.arguments_of(&wanted);
        let parameters = match parameters {
            Some(all) => read_of(all, read),
            None if read == 0 => Parameters::default(),
            None => bail!("its code doesn't tell where its parameters are, which a handler reads"),
        };
        Ok(Some(PatchedKernel { symbol: symbol.to_owned(), name: 0, conditions, handlers, parameters, reading }))
    }

    fn weave(&self, modules: &[PortableCode<'_>], gpu: Gpu) -> Result<ImageTwins, NoTwin> {
        self.maker.twins(modules, gpu, &mut |it| self.wanted(it))
    }

    /// Weaves handlers into a kernel that was loaded before we came, or says why it gets none. Several files may have it: then
    /// all of them must have the same.
    fn weave_early(&self, symbol: &str, pid: u32, gpu: Gpu) -> Result<Result<ImageTwins, Woven>> {
        let Some(wanted) = self.wanted(symbol) else { return Ok(Err(Woven::Nothing)) };
        let found = self.files.find(pid, symbol, gpu, &|it| self.wanted(it).is_some())?;
        let mut different: Vec<Vec<TwinText>> = Vec::new();
        for ptx in &found.ptx {
            let of_it = |it: &str| (it == symbol).then(|| wanted.clone());
            let ImageTwins { texts, mut refused } = self.maker.twins(std::slice::from_ref(ptx), gpu, &mut { of_it })?;
            if let Some((_, why)) = refused.pop_first() {
                return Err(why.into());
            }
            if !texts.is_empty() && !different.contains(&texts) {
                different.push(texts);
            }
        }
        Ok(match (different.pop(), found.elsewhere) {
            (Some(texts), None) if different.is_empty() => Ok(ImageTwins { texts, ..ImageTwins::default() }),
            (Some(_), _) => Err(Woven::Ambiguous),
            (None, Some(Elsewhere::OlderPortableCode)) => Err(Woven::OlderPortableCode),
            (None, Some(Elsewhere::NoPortableCode)) => Err(Woven::NoPortableCode),
            (None, None) => Err(Woven::NotInFiles),
        })
    }

    /// Returns what a kernel gets, if anything.
    fn wanted(&self, symbol: &str) -> Option<Wanted> {
        let demangled = xputrace_symbols::demangle(symbol);
        let texts = [&*demangled.name, &*demangled.short_name, symbol];
        let handlers: Vec<usize> = (0..self.kernels.len()).filter(|it| self.kernels[*it].has(texts)).collect();
        (!handlers.is_empty()).then_some(Wanted { handlers })
    }

    fn compile(
        &self,
        PtxSource { text, target, purpose }: PtxSource<'_>,
        capabilities: ComputeCapabilities,
        Requester { pid, account, .. }: Requester,
    ) -> Result<Compiled, WhyText> {
        let ComputeCapabilities { least: capability, greatest } = capabilities;
        if capability == 0 || capability != greatest {
            return Err(WhyText::Gpus);
        }
        if !toolkit::can_become(account) {
            return Err(WhyText::OtherUser(account.uid));
        }
        let cache = toolkit::cache(account);
        let limit = Limit { within: COMPILES_WITHIN, is_given_up: &self.is_over };
        let candidates = toolkit::candidates(pid);
        let order = Order {
            text,
            target,
            purpose,
            capability,
            candidates: &candidates,
            account,
            cache: cache.as_ref().ok(),
            limit,
        };
        let _under_way = self.compiling.clone();
        let cubin = self.compiler.compile(order).map_err(|it| match it {
            NoCubin::NoPtxas(reasons) => WhyText::NoPtxas(reasons),
            NoCubin::Failed(why) => WhyText::Failed(why),
        })?;
        let of_directory = cache.err().map(|it| format!("{it:#}"));
        let unkept = of_directory.or_else(|| cubin.unkept.as_ref().map(ToString::to_string));
        Ok(Compiled { cubin, unkept })
    }
}

/// Returns why patches for a process can't be compiled, as far as that is known before.
pub fn no_compiler(pid: u32, account: Account) -> Option<String> {
    let why = match toolkit::can_become(account) {
        false => WhyText::OtherUser(account.uid),
        true if toolkit::candidates(pid).is_empty() => WhyText::NoPtxas(Vec::new()),
        true => return None,
    };
    Some(tally::lacking_for_patches(&why))
}

/// Returns what an error calls a kernel in which handlers don't run.
pub fn in_kernel(symbol: &str) -> String {
    format!("the kernel {}", xputrace_symbols::demangle(symbol).name)
}

/// Returns those of a kernel's parameters that handlers read, by their bits, and can have.
fn read_of(all: &[Parameter], read: u64) -> Parameters {
    let is_had = |n: usize, it: &Parameter| read >> n & 1 == 1 && it.bytes <= Parameter::MOST_BYTES;
    let had = |n: usize| all.get(n).copied().filter(|it| is_had(n, it)).unwrap_or(Parameter::NONE);
    std::array::from_fn(had)
}

/// Returns a function that takes more stack in a twin than in its original, as far as is known, with its bytes in both.
fn larger_frame<'a>(twin: &'a StackUsage, original: &StackUsage) -> Option<(&'a str, u32, u32)> {
    twin.iter().find_map(|(function, bytes)| {
        let most_bytes = original.get(original_symbol(function)).copied().unwrap_or(0);
        (*bytes > most_bytes).then_some((original_symbol(function), *bytes, most_bytes))
    })
}

/// PTX to compile.
struct PtxSource<'a> {
    text: &'a str,
    /// What it is for, as it says: `sm_90a`.
    target: &'a str,
    purpose: Purpose,
}

/// Describes PTX that is not in an image.
fn plain(text: &[u8]) -> PortableCode<'_> {
    let text_bytes = text.len() as u64;
    PortableCode { codec: Codec::Plain, portability: Portability::Later, sm: 0, text_bytes, stored: text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_twins_functions_may_take_no_more_stack_than_the_originals() {
        let frames = |all: &[(&str, u32)]| all.iter().map(|it| (it.0.to_owned(), it.1)).collect::<StackUsage>();
        let original = frames(&[("k", 8), ("fib", 32)]);
        let larger = |twin: &[(&str, u32)]| {
            let twin = frames(twin);
            larger_frame(&twin, &original).map(|it| (it.0.to_owned(), it.1, it.2))
        };
        assert_eq!(larger(&[("k$xpt", 8), ("fib", 32)]), None);
        assert_eq!(larger(&[("k$xpt", 0)]), None, "it may be part of another");
        assert_eq!(larger(&[("k$xpt", 8), ("fib", 40)]), Some(("fib".into(), 40, 32)));
        assert_eq!(larger(&[("k$xpt", 16), ("fib", 32)]), Some(("k".into(), 16, 8)));
        assert_eq!(larger(&[("k$xpt", 8), ("other", 16)]), Some(("other".into(), 16, 0)), "not known of the original");
    }
}
