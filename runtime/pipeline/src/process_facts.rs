//! What is known of one process, and its words of an event.

use crate::allocations::Allocation;
use crate::context::{self, Comm, Symbol, ThreadIdentity};
use crate::fields_read::FieldsRead;
use crate::gpus::Gpus;
use crate::id_map::IdMap;
use crate::joined::Joined;
use crate::process_info::{ProcessIndex, ProcessInfo};
use crate::strings::Strings;
use rustc_hash::FxHashMap;
use xputrace_model::context::{GpuContext, word};
use xputrace_model::plan::{Detail, Details};
use xputrace_model::stack::StackKey;
use xputrace_wire::events::host::Common;
use xputrace_wire::events::{Choice, EventSource, Texts};
use xputrace_wire::record::{self, ActivityRecord, HostEventRecord, Launch, Node, NodeUpdate, UNKNOWN};

/// Maximum number of threads remembered per process.
const MOST_THREADS: usize = 1 << 16;
/// Maximum number of nodes of graphs remembered per process; a collector keeps 131,072.
const MOST_NODES: usize = 1 << 18;
/// Maximum number of streams remembered per process.
const MOST_STREAMS: usize = 1 << 16;
/// Maximum size of the names kept per process: each as it is, readable and short. A readable one may be longer.
const MOST_NAME_BYTES: usize = 4 * record::MAX_NAME_BYTES;
/// What a launch told of its stream.
#[derive(Clone, Copy, Default)]
struct SeenStream {
    /// A string id; 0 if it is not known.
    kind: u64,
    priority: Option<i32>,
}

struct SeenThread {
    /// Its id in the tracer's namespace.
    tid: u32,
    /// `None` if it has that of the process.
    comm: Option<Comm>,
}

/// Ids and names.
pub(crate) struct ProcessFacts {
    pub(crate) index: ProcessIndex,
    pid: u64,
    pid_in_target: u32,
    comm: Comm,
    names: IdMap<Symbol>,
    name_bytes: usize,
    /// By their ids in the target.
    threads: FxHashMap<u32, SeenThread>,
    pub(crate) gpus: Gpus,
    streams: FxHashMap<(u32, u32), SeenStream>,
    /// The stacks of nodes of graphs.
    nodes: FxHashMap<u64, u32>,
    /// Of those that were updated: since when they have which other stack.
    updates: FxHashMap<u64, Vec<(u64, u32)>>,
    n_updates: usize,
}

impl ProcessFacts {
    pub(crate) fn new(index: ProcessIndex, info: &ProcessInfo) -> Self {
        ProcessFacts {
            index,
            pid: info.pid.into(),
            pid_in_target: if info.pid_in_target == 0 { info.pid } else { info.pid_in_target },
            comm: xputrace_model::text::padded::<16>(&info.comm).into(),
            names: IdMap::default(),
            name_bytes: 0,
            threads: FxHashMap::default(),
            gpus: Gpus::default(),
            streams: FxHashMap::default(),
            nodes: FxHashMap::default(),
            updates: FxHashMap::default(),
            n_updates: 0,
        }
    }

    /// Notes what the stream of a launch is.
    pub(crate) fn note_stream(&mut self, launch: &Launch, strings: &Strings) {
        let stream = (launch.context, launch.stream);
        if launch.stream != UNKNOWN && self.streams.len() < MOST_STREAMS {
            let seen = || SeenStream { kind: strings.stream_kind(launch), priority: launch.priority() };
            self.streams.entry(stream).or_insert_with(seen);
        }
    }

    /// Takes the stack of a node of a graph; returns false if there are too many.
    pub(crate) fn add_node(&mut self, node: &Node) -> bool {
        let has_room = self.nodes.len() < MOST_NODES || self.nodes.contains_key(&node.node);
        if has_room {
            self.nodes.insert(node.node, node.stack);
        }
        has_room
    }

    /// Takes the stack of a node that was updated; returns false if there are too many.
    pub(crate) fn update_node(&mut self, update: &NodeUpdate) -> bool {
        if self.n_updates >= MOST_NODES {
            return false;
        }
        self.n_updates += 1;
        self.updates.entry(update.node).or_default().push((update.since, update.stack));
        true
    }

    /// Returns the stack that a node had at this time.
    fn stack_of_node(&self, node: u64, time: u64) -> Option<u32> {
        let updates = self.updates.get(&node).map(Vec::as_slice).unwrap_or_default();
        let last = updates.iter().filter(|it| it.0 <= time).max_by_key(|it| it.0);
        last.map(|it| it.1).or_else(|| self.nodes.get(&node).copied()).filter(|it| *it != 0)
    }

    /// Fills the stacks that captured what ran, or instantiated it if it is a graph.
    fn fill_capture(&self, ctx: &mut GpuContext, event: &Joined<'_>) {
        let node = match event.activity {
            ActivityRecord::Graph(it) => Node::of_graph(it.graph),
            other => other.graph_node(),
        };
        let time = event.launch.map_or(event.span.start, |it| it.start);
        let known = self.stack_of_node(node, time).filter(|_| node != 0);
        let process = self.index.0;
        let keys = known.map(|id| [StackKey::Collector { process, id }, StackKey::CollectorPython { process, id }]);
        let [ustack, pystack] = keys.map_or([0; 2], |it| it.map(|key| key.to_word()));
        ctx[word::CAPTURE_USTACK] = ustack;
        ctx[word::CAPTURE_PYSTACK] = pystack;
        ctx[word::CAPTURED] = known.is_some().into();
    }

    /// Fills what is known of a stream: its kind at `kind`, its priority at `priority` and the word before.
    fn fill_stream(&self, ctx: &mut GpuContext, stream: (u32, u32), (kind, priority): (usize, usize)) {
        let seen = self.streams.get(&stream).copied().unwrap_or_default();
        ctx[kind] = seen.kind;
        ctx[priority - 1] = seen.priority.is_some().into();
        ctx[priority] = i64::from(seen.priority.unwrap_or(0)) as u64;
    }

    pub(crate) fn name_thread(&mut self, tid: u32, comm: [u8; 16]) {
        if tid == self.pid_in_target {
            self.comm = comm.into();
        }
        if self.threads.len() < MOST_THREADS || self.threads.contains_key(&tid) {
            self.seen_thread(tid).comm = Some(comm.into());
        }
    }

    /// Says that a thread has another id in the tracer's namespace.
    pub(crate) fn translate_thread(&mut self, tid_in_target: u32, tid: u32) {
        self.seen_thread(tid_in_target).tid = tid;
    }

    fn seen_thread(&mut self, tid: u32) -> &mut SeenThread {
        self.threads.entry(tid).or_insert(SeenThread { tid, comm: None })
    }

    pub(crate) fn knows_name(&self, id: u32) -> bool {
        self.names.get(id).is_some()
    }

    pub(crate) fn has_room_for_names(&self) -> bool {
        self.name_bytes < MOST_NAME_BYTES
    }

    /// Adds a name whose texts take that many bytes; returns false if the id is out of range.
    pub(crate) fn name(&mut self, id: u32, symbol: Symbol, bytes: usize) -> bool {
        self.name_bytes += bytes;
        self.names.insert(id, symbol)
    }

    #[inline]
    pub(crate) fn lacks_name(&self, id: u32) -> bool {
        id >= self.names.first_gap() && id != 0 && self.names.get(id).is_none()
    }

    fn symbol(&self, id: u32) -> Symbol {
        self.names.get(id).copied().unwrap_or_default()
    }

    /// Whether a record has the name of a twin.
    pub(crate) fn is_twin(&self, symbol: u32) -> bool {
        self.symbol(symbol).is_twin
    }

    /// Returns a launch's name: its kernel's or, if it launches none or several, the call's.
    pub(crate) fn launch_symbol(&self, launch: &Launch) -> Symbol {
        match launch.symbol {
            0 | UNKNOWN => {
                let api = self.symbol(launch.api);
                Symbol { symbol: 0, ..api }
            }
            id => self.symbol(id),
        }
    }

    #[inline]
    fn thread(&self, tid_in_target: u32) -> ThreadIdentity {
        let unknown = SeenThread { tid: tid_in_target, comm: None };
        let SeenThread { tid, comm } = self.threads.get(&tid_in_target).unwrap_or(&unknown);
        ThreadIdentity { pid: self.pid, tid: (*tid).into(), comm: comm.unwrap_or(self.comm) }
    }

    #[inline]
    pub(crate) fn fill_activity_event(&self, ctx: &mut GpuContext, event: &Joined<'_>, strings: &Strings) {
        let read = strings.activity_fields;
        let mut identity = ThreadIdentity { pid: self.pid, tid: self.pid, comm: self.comm };
        match event.launch {
            None => context::clear_launch(ctx),
            Some(launch) => {
                let thread = self.thread(launch.tid);
                identity.tid = thread.tid;
                self.fill_launch_words(ctx, (launch, thread), strings, read);
                if launch.stream == UNKNOWN {
                    ctx[word::LAUNCH_STREAM] = event.activity.stream().into();
                }
            }
        }
        if strings.reads.has(Detail::Gpus) {
            context::fill_gpu(ctx, (word::GPU, word::GPU_LIMITS), self.gpus.of(event.activity.device()));
        }
        if strings.reads.has(Detail::Captures) {
            self.fill_capture(ctx, event);
        }
        if strings.reads.intersects(Details::OF_STREAMS) {
            let stream = (event.activity.context(), event.activity.stream());
            self.fill_stream(ctx, stream, (word::STREAM_KIND, word::STREAM_PRIORITY));
        }
        let symbol = self.symbol(event.activity.symbol());
        if read.record {
            event.activity.put_words(ctx, strings);
            context::fill_earlier_times(ctx, event.activity, event.span.start);
        }
        context::fill_activity(ctx, event.span, symbol, identity);
    }

    pub(crate) fn fill_launch_event(&self, ctx: &mut GpuContext, launch: &Launch, strings: &Strings) {
        context::clear_activity(ctx);
        let thread = self.thread(launch.tid);
        self.fill_launch_words(ctx, (launch, thread), strings, FieldsRead::ALL);
        context::fill_identity(ctx, launch.start, thread);
    }

    /// Fills the words of a host event, except the parameters of an `api` event.
    pub(crate) fn fill_host_event(
        &self,
        ctx: &mut GpuContext,
        record: &HostEventRecord,
        freed: Option<Allocation>,
        strings: &Strings,
    ) {
        ctx.fill(0);
        let common = record.common();
        context::fill_host_event(ctx, record, self.thread(common.tid), strings);
        let kind = record.kind();
        match record {
            HostEventRecord::Range(it) => {
                ctx[word::range::NAME] = self.symbol(it.path).name;
                ctx[word::range::PATH] = self.symbol(it.path).symbol;
                ctx[word::range::DOMAIN] = self.symbol(it.domain).name;
                ctx[word::range::PAYLOAD_TEXT] = strings.payload(it);
            }
            _ if kind.source() == EventSource::Record => {}
            _ => {
                self.fill_stacks(ctx, common.stack, common.flags & Common::NO_STACK != 0);
                self.fill_ranges(ctx, common.ranges);
                self.fill_gpu_of_call(ctx, common.device, strings);
            }
        }
        if kind.source() == EventSource::Call {
            ctx[word::LAUNCH_API] = strings.function(common.function);
            ctx[word::call::NESTED] = strings.function(common.nested);
            ctx[word::call::ERROR] = strings.error(common.function, common.result);
        }
        if let HostEventRecord::Free(free) = record {
            ctx[word::call::BYTES] = freed.map_or(0, |it| it.bytes);
            ctx[word::call::HAS_BYTES] = freed.is_some().into();
            ctx[word::call::KIND] = strings.choice(Choice::AllocKind, freed.map_or(free.kind, |it| it.kind));
        }
    }

    /// Fills the stack of a launch or of a call: 0 if there is none, which may be because it was lost.
    #[inline]
    fn fill_stacks(&self, ctx: &mut GpuContext, id: u32, is_lost: bool) {
        let (ustack, pystack) = self.stacks(id, is_lost);
        ctx[word::LAUNCH_USTACK] = ustack.to_word();
        ctx[word::LAUNCH_PYSTACK] = pystack.to_word();
    }

    /// Fills the innermost range around a launch or a call, and the path of all.
    #[inline]
    fn fill_ranges(&self, ctx: &mut GpuContext, id: u32) {
        let ranges = self.symbol(id);
        ctx[word::LAUNCH_RANGE] = ranges.name;
        ctx[word::LAUNCH_RANGE_PATH] = ranges.symbol;
    }

    #[inline]
    fn fill_gpu_of_call(&self, ctx: &mut GpuContext, device: u32, strings: &Strings) {
        if strings.reads.has(Detail::Gpus) {
            context::fill_gpu(ctx, (word::LAUNCH_GPU, word::LAUNCH_GPU_LIMITS), self.gpus.of(device));
        }
    }

    /// Returns the keys of a stack that the collector took, with and without native frames.
    #[inline]
    fn stacks(&self, id: u32, is_lost: bool) -> (StackKey, StackKey) {
        let process = self.index.0;
        match id {
            0 if is_lost => (StackKey::Lost, StackKey::Lost),
            // Asked for Python's frames alone, the collector found none.
            0 => (StackKey::Lost, StackKey::CollectorPython { process, id: 0 }),
            id => (StackKey::Collector { process, id }, StackKey::CollectorPython { process, id }),
        }
    }

    #[inline(always)]
    fn fill_launch_words(
        &self,
        ctx: &mut GpuContext,
        (launch, thread): (&Launch, ThreadIdentity),
        strings: &Strings,
        read: FieldsRead,
    ) {
        if read.launch_record {
            launch.put_words(ctx, strings);
        }
        if read.launch_facts {
            self.fill_launch_facts(ctx, launch, strings);
        }
        context::fill_launch_thread(ctx, thread);
        self.fill_gpu_of_call(ctx, launch.device, strings);
        if strings.reads.intersects(Details::OF_STREAMS) {
            let stream = (launch.context, launch.stream);
            self.fill_stream(ctx, stream, (word::LAUNCH_STREAM_KIND, word::LAUNCH_STREAM_PRIORITY));
        }
    }

    #[inline]
    fn fill_launch_facts(&self, ctx: &mut GpuContext, launch: &Launch, strings: &Strings) {
        let symbol = self.launch_symbol(launch);
        self.fill_stacks(ctx, launch.stack, launch.flags & Launch::NO_STACK != 0);
        self.fill_ranges(ctx, launch.ranges);
        ctx[word::LAUNCH_DURATION] = launch.end.wrapping_sub(launch.start);
        ctx[word::LAUNCH_API] = self.symbol(launch.api).symbol;
        ctx[word::LAUNCH_KIND] = launch.call().map_or(0, |it| strings.call(it));
        ctx[word::LAUNCH_NAME] = symbol.name;
        ctx[word::LAUNCH_SHORT_NAME] = symbol.short_name;
        ctx[word::LAUNCH_SYMBOL] = symbol.symbol;
        let is_tagged = launch.flags & Launch::TAGGED != 0;
        ctx[word::LAUNCH_TAGGED] = is_tagged.into();
        ctx[word::LAUNCH_TAG] = if is_tagged { launch.tag as u64 } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xputrace_model::loss::Loss;

    #[test]
    fn the_help_says_how_many_names_a_collector_sends() {
        let (thousands, rest) = (record::MAX_NAMES / 1000, record::MAX_NAMES % 1000);
        let said = format!("{thousands},{rest:03} names, and {} MiB", record::MAX_NAME_BYTES >> 20);
        assert!(Loss::NameTableFull.help().unwrap().contains(&said), "{said}");
    }
}
