//! A vendor-neutral backend: the minimum that a second one must implement.

use crate::machine::{Machine, framed};
use std::ffi::{CStr, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering::SeqCst};
use xputrace_agent::World;
use xputrace_agent::launch::{self, Entered, Records, Returned, Submission};
use xputrace_agent::this_thread;
use xputrace_agent::{Agent, ArmRefusal, Backend, Context, Flushing, Layer, Library, Order, Stream, StreamKind};
use xputrace_unwind::{Pushed, push_registers};
use xputrace_wire::events::{Activities, Activity, Call, Calls, Realtime};
use xputrace_wire::message::demand;
use xputrace_wire::record::Kernel;

static AGENT: AtomicPtr<Agent> = AtomicPtr::new(std::ptr::null_mut());
static KERNELS: Mutex<Vec<(Kernel, &'static CStr)>> = Mutex::new(Vec::new());
static RECORDS: AtomicBool = AtomicBool::new(false);
static LET_GO: AtomicUsize = AtomicUsize::new(0);
static QUESTIONS: AtomicUsize = AtomicUsize::new(0);
static CORRELATION: AtomicU32 = AtomicU32::new(1);

/// The backend.
#[derive(Debug)]
struct PlainBackend;

/// The machine with this backend.
pub struct Plain;

impl Library for PlainBackend {
    fn version(&self) -> u32 {
        7
    }

    fn capabilities(&self) -> u64 {
        demand::STREAMS | demand::calls(Calls::LAUNCHES) | demand::activities(Activities::of(&[Activity::Kernel]))
    }

    fn layer_of(&self, _file_name: &[u8]) -> Option<Layer> {
        None
    }

    fn device_of(&self, context: Context) -> Option<u32> {
        Some(context.id - 2)
    }

    fn stream_of(&self, _context: Context, stream: Stream) -> Option<u32> {
        QUESTIONS.fetch_add(1, SeqCst);
        Some(stream.handle as u32 + 100)
    }

    fn kind_of_stream(&self, _: Stream) -> StreamKind {
        StreamKind::Created
    }
}

impl Backend for PlainBackend {
    fn start(&'static self, agent: &'static Agent) -> Result<(), ArmRefusal> {
        agent.tells_of_streams();
        AGENT.store(std::ptr::from_ref(agent).cast_mut(), SeqCst);
        Ok(())
    }

    fn switch(&'static self, _agent: &'static Agent, _from: &Order, to: &Order) -> Result<(), ArmRefusal> {
        RECORDS.store(*to != Order::NONE, SeqCst);
        Ok(())
    }

    fn abandon(&self, _agent: &'static Agent) {
        AGENT.store(std::ptr::null_mut(), SeqCst);
    }

    fn flush(&self, agent: &'static Agent, _how: Flushing) -> bool {
        let kernels = std::mem::take(&mut *KERNELS.lock().unwrap());
        if !kernels.is_empty() {
            agent.deliver(kernels.len() as u32, 1 << 20, |delivery| {
                kernels.iter().for_each(|(kernel, name)| unsafe { delivery.kernel(*kernel, name.as_ptr()) });
            });
        }
        true
    }

    fn stop_activities(&self, _agent: &'static Agent) {
        RECORDS.store(false, SeqCst);
    }

    fn leave(&'static self, _agent: &'static Agent) -> Option<&'static str> {
        AGENT.store(std::ptr::null_mut(), SeqCst);
        LET_GO.fetch_add(1, SeqCst);
        None
    }
}

/// The return of a call that was entered before callbacks were enabled; of the runtime around a call of the driver, if
/// that is given.
pub fn returns_only(inner: Option<u32>) -> u32 {
    let correlation = inner.unwrap_or_else(|| CORRELATION.fetch_add(1, SeqCst));
    let returned = Returned { call: 0, submits: Call::Kernel, correlation, result: 0, context: CONTEXT };
    let _ = agent().map(|it| unsafe { launch::exit(this_thread(), it, &returned) });
    correlation
}

/// Enters a launch call; [`returns_only`] leaves it.
pub fn enters_only() -> u32 {
    enter(0, c"plainLaunch", Some(c"_Z1fv"), Call::Kernel, 0)
}

pub fn agent() -> Option<&'static Agent> {
    unsafe { AGENT.load(SeqCst).as_ref() }
}

const CONTEXT: Option<Context> = Some(Context { id: 5, handle: std::ptr::null_mut() });

/// Enters and leaves a call, below a function that keeps frame pointers.
fn call(call: usize, name: &CStr, symbol: Option<&CStr>, submits: Call, stream: u64, result: i32) -> u32 {
    let correlation = enter(call, name, symbol, submits, stream);
    let returned = Returned { call, submits, correlation, result, context: CONTEXT };
    let _ = agent().map(|it| unsafe { launch::exit(this_thread(), it, &returned) });
    correlation
}

fn enter(call: usize, name: &CStr, symbol: Option<&CStr>, submits: Call, stream: u64) -> u32 {
    let correlation = CORRELATION.fetch_add(1, SeqCst);
    let Some(agent) = agent() else { return correlation };
    let mut enter = |registers: &Pushed| {
        let (name, symbol) = (name.as_ptr(), symbol.map_or(std::ptr::null(), CStr::as_ptr));
        let entered = Entered { call, layer: Layer::Driver, submits, correlation, name, symbol, registers };
        let submission = Submission {
            context: CONTEXT,
            grid: [4, 2, 1],
            block: [64, 1, 1],
            dynamic_shared: 128,
            stream: Some(Stream { handle: stream as usize, per_thread: false }),
            is_captured: false,
            records: Records::Certain,
        };
        unsafe { launch::enter(this_thread(), agent, &entered, || submission) };
    };
    let mut enter: &mut dyn FnMut(&Pushed) = &mut enter;
    unsafe { framed(with_registers as *const c_void, (&raw mut enter) as usize, 0, 0, std::ptr::null()) };
    correlation
}

/// Calls the closure at `user` with the caller's registers.
#[unsafe(naked)]
unsafe extern "C" fn with_registers(user: *mut c_void) {
    core::arch::naked_asm!(
        push_registers!(),
        "mov rsi, rsp",
        "call {}",
        "add rsp, 56",
        "ret",
        sym run
    )
}

unsafe extern "C" fn run(user: *mut c_void, registers: *const Pushed) {
    unsafe { (*user.cast::<&mut dyn FnMut(&Pushed)>())(&*registers) }
}

impl Machine for Plain {
    fn reset() {
        AGENT.store(std::ptr::null_mut(), SeqCst);
        KERNELS.lock().unwrap().clear();
        RECORDS.store(false, SeqCst);
        LET_GO.store(0, SeqCst);
        QUESTIONS.store(0, SeqCst);
    }

    fn world() -> World {
        World { backend: Some(Box::new(PlainBackend)), library: "/fake/libplain.so".into(), ..World::default() }
    }

    fn launch(symbol: &CStr, stream: u64, result: i32) -> u32 {
        let correlation = call(0, c"plainLaunch", Some(symbol), Call::Kernel, stream, result);
        if result == 0 {
            Self::push_kernel(correlation, symbol);
        }
        correlation
    }

    fn launch_quietly() {
        call(0, c"plainLaunch", Some(c"_Z1fv"), Call::Kernel, 7, 0);
    }

    fn launch_graph(kernels: u64) -> u32 {
        let correlation = call(1, c"plainGraph", None, Call::Graph, 0, 0);
        (0..kernels).for_each(|_| Self::push_kernel(correlation, c"_Z1fv"));
        correlation
    }

    fn push_kernel(correlation: u32, symbol: &CStr) {
        if RECORDS.load(SeqCst) {
            let (start, end) = (Realtime(1_000_000), Realtime(1_000_500));
            let name = Box::leak(symbol.to_owned().into_boxed_c_str());
            KERNELS.lock().unwrap().push((Kernel { start, end, correlation, ..Kernel::default() }, name));
        }
    }

    fn spoil_last_kernel() {
        let mut kernels = KERNELS.lock().unwrap();
        let (kernel, _) = kernels.last_mut().unwrap();
        (kernel.start, kernel.end) = (Realtime(0), Realtime(0));
    }

    fn create_stream() {
        if let Some(agent) = agent() {
            agent.on_stream_created();
        }
    }

    fn stream_questions() -> usize {
        QUESTIONS.load(SeqCst)
    }

    fn times_let_go() -> usize {
        LET_GO.load(SeqCst)
    }

    fn is_recording() -> bool {
        RECORDS.load(SeqCst) || agent().is_some()
    }

    fn caller() -> u64 {
        framed as *const () as u64
    }
}
