//! What each event of the language is for: one table for `xputrace help`, the overview in the language reference, and the
//! definitions for editors. Fields are in [`crate::schema`].

use crate::schema::{Activity, DeviceEvent, Event, HostEvent};

/// An event's entry in the manual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub event: Event,
    /// How it is declared: `kernel(|k| …)`.
    pub declaration: &'static str,
    /// When it fires: a clause, in Markdown.
    pub meaning: &'static str,
    /// A script that uses it.
    pub example: &'static str,
}

/// Returns the entry of an event.
pub fn entry(event: Event) -> Option<&'static Entry> {
    EVENTS.iter().find(|it| it.event == event)
}

/// Every event, in the order of the reference.
pub const EVENTS: &[Entry] = &[
    Entry {
        event: Event::KERNEL,
        declaration: "kernel(|k| …)",
        meaning: "a kernel ran on the GPU",
        example: "kernel(|k| @time[k.name].sum(k.duration));",
    },
    Entry {
        event: Event::Activity(Activity::Memset),
        declaration: "memset(|m| …)",
        meaning: "the GPU set memory to a value",
        example: "memset(|m| @set[m.memory_kind ?? \"graph\"].sum(m.bytes));",
    },
    Entry {
        event: Event::Activity(Activity::Memcpy),
        declaration: "memcpy(|m| …)",
        meaning: "the GPU copied memory",
        example: "memcpy(|m| @copied[m.direction].sum(m.bytes));",
    },
    Entry {
        event: Event::Activity(Activity::Graph),
        declaration: "graph(|g| …)",
        meaning: "the GPU ran a graph that was launched",
        example: "graph(|g| @graph_us.hist(g.duration / 1.us));",
    },
    Entry {
        event: Event::Launch,
        declaration: "launch(|l| …)",
        meaning: "a call launched a kernel or a graph, or made a call of its `kinds`",
        example: "launch(|l| @calls[l.api].count());",
    },
    Entry {
        event: Event::Host(HostEvent::Wait),
        declaration: "wait(|w| …)",
        meaning: "a CUDA call in which the CPU waits for the GPU has returned",
        example: "wait(|w| @waited[w.api].sum(w.duration));",
    },
    Entry {
        event: Event::Host(HostEvent::Alloc),
        declaration: "alloc(|a| …)",
        meaning: "a CUDA call that allocates memory has returned",
        example: "alloc(|a| @allocated[a.api].sum(a.bytes));",
    },
    Entry {
        event: Event::Host(HostEvent::Free),
        declaration: "free(|f| …)",
        meaning: "a CUDA call that frees memory has returned",
        example: "free(|f| @freed[f.api].count());",
    },
    Entry {
        event: Event::Host(HostEvent::Api),
        declaration: "api(\"cudaMalloc*\", |a| …)",
        meaning: "a CUDA call of that name has returned",
        example: "api(\"cudaMalloc\", |a| if a.error != () { print(`${a.args.size} bytes: ${a.error}`) });",
    },
    Entry {
        event: Event::Host(HostEvent::EventRecord),
        declaration: "event_record(|r| …)",
        meaning: "a CUDA call that records a CUDA event has returned",
        example: "event_record(|r| @records[r.api].count());",
    },
    Entry {
        event: Event::Host(HostEvent::StreamChange),
        declaration: "stream(|s| …)",
        meaning: "a CUDA call that creates or destroys a stream has returned",
        example: "stream(|s| @streams[s.api].count());",
    },
    Entry {
        event: Event::Host(HostEvent::Nvtx),
        declaration: "nvtx(|n| …)",
        meaning: "an NVTX range of the program was closed, or a mark was set",
        example: "nvtx(|n| @ranges[n.name ?? \"without a name\"].sum(n.duration));",
    },
    Entry {
        event: Event::Host(HostEvent::Module),
        declaration: "module(|m| …)",
        meaning: "a module, code for the GPU, was loaded or is about to be unloaded",
        example: "module(|m| @modules[m.kind].count());",
    },
    Entry {
        event: Event::Host(HostEvent::ContextChange),
        declaration: "context(|c| …)",
        meaning: "a CUDA context was created or is about to be destroyed",
        example: "context(|c| @contexts[c.kind].count());",
    },
    Entry {
        event: Event::Host(HostEvent::Overhead),
        declaration: "overhead(|o| …)",
        meaning: "CUPTI or the driver took time from the program",
        example: "overhead(|o| @cost[o.kind].sum(o.duration));",
    },
    Entry {
        event: Event::Host(HostEvent::Migration),
        declaration: "migration(|m| …)",
        meaning: "unified memory moved, or was touched where it wasn't",
        example: "migration(|m| @moved[m.kind].count());",
    },
    Entry {
        event: Event::Device(DeviceEvent::Entry),
        declaration: "device_entry(\"vectorAdd\", |t| …)",
        meaning: "a thread of a kernel of that name begins",
        example: "device_entry(\"vectorAdd\", |t| @threads.count());",
    },
    Entry {
        event: Event::Device(DeviceEvent::Exit),
        declaration: "device_exit(\"vectorAdd\", |t| …)",
        meaning: "a thread of a kernel of that name is about to end",
        example: "device_exit(\"vectorAdd\", |t| @last[t.threadIdx.x].max(t.time));",
    },
    Entry {
        event: Event::Device(DeviceEvent::BlockBegin),
        declaration: "device_block_begin(\"vectorAdd\", |t| …)",
        meaning: "the first thread of a block of a kernel of that name begins",
        example: "device_block_begin(\"vectorAdd\", |t| @blocks[t.smid].count());",
    },
    Entry {
        event: Event::Device(DeviceEvent::BlockEnd),
        declaration: "device_block_end(\"vectorAdd\", |t| …)",
        meaning: "the last thread of a block of a kernel of that name is about to end",
        example: "device_block_end(\"vectorAdd\", |t| @ended[t.blockIdx.x].max(t.time));",
    },
    Entry {
        event: Event::Device(DeviceEvent::Memory),
        declaration: "device_mem(\"vectorAdd\", |t| …)",
        meaning: "a thread of a kernel of that name is about to access memory",
        example: "device_mem(\"vectorAdd\", |t| @bytes[t.access].sum(t.bytes));",
    },
    Entry {
        event: Event::Device(DeviceEvent::Barrier),
        declaration: "device_barrier(\"vectorAdd\", |t| …)",
        meaning: "a thread of a kernel of that name comes to a barrier",
        example: "device_barrier(\"vectorAdd\", |t| @barriers.count());",
    },
    Entry {
        event: Event::Device(DeviceEvent::Call),
        declaration: "device_call(\"vectorAdd\", |t| …)",
        meaning: "a thread of a kernel of that name is about to call a function",
        example: "device_call(\"vectorAdd\", |t| @calls[t.callee].count());",
    },
    Entry {
        event: Event::Device(DeviceEvent::Line),
        declaration: "device_line(\"vectorAdd\", |t| …)",
        meaning: "a thread of a kernel of that name comes to another source line",
        example: "device_line(\"vectorAdd\", |t| @lines[t.line].count());",
    },
    Entry {
        event: Event::Uprobe,
        declaration: "uprobe(\"libc:malloc\", |e| …)",
        meaning: "a function of a library or program is entered: `library:function`, `./program:function`, `*` in either",
        example: "uprobe(\"libc:malloc\", |e| @bytes[e.comm].hist(e.arg0));",
    },
    Entry {
        event: Event::Uretprobe,
        declaration: "uretprobe(\"libc:read\", |e| …)",
        meaning: "a function returns; paired with its entry",
        example: "uretprobe(\"libc:read\", |e| @us.hist(e.duration / 1.us));",
    },
    Entry {
        event: Event::Usdt,
        declaration: "usdt(\"./server:shop:sold\", |e| …)",
        meaning: "a probe that the program's author put into the code is passed: `file:provider:name`, `*` in provider and name; \
                  `file::name` if one provider has it",
        example: "usdt(\"./server:shop:sold\", |e| @price.hist(e.arg0));",
    },
    Entry {
        event: Event::Tracepoint,
        declaration: "tracepoint(\"sched:sched_switch\", |e| …)",
        meaning: "a tracepoint of Linux is hit: `category:name`, `*` in either",
        example: "tracepoint(\"sched:sched_switch\", |e| @switches[e.prev_comm].count());",
    },
    Entry {
        event: Event::Profile,
        declaration: "profile(99.hz, |e| …)",
        meaning: "the given number of times per second, on each CPU that runs the target",
        example: "profile(99.hz, |e| @cpu[e.ustack].count());",
    },
    Entry {
        event: Event::Interval,
        declaration: "interval(1.s, || …)",
        meaning: "the given time has passed, in the tracer",
        example: "kernel(|k| @kernels[k.name].count());\ninterval(1.s, || { print(@kernels); @kernels.clear(); });",
    },
    Entry {
        event: Event::Begin,
        declaration: "begin(|| …)",
        meaning: "all probes are attached",
        example: "kernel(|k| @kernels.count());\nbegin(|| print(\"tracing\"));",
    },
    Entry {
        event: Event::End,
        declaration: "end(|| …)",
        meaning: "the run is over",
        example: "kernel(|k| @time[k.name].sum(k.duration));\nend(|| print(@time.top(5)));",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_has_one_entry_that_declares_it() {
        for event in Event::all() {
            let entries: Vec<&Entry> = EVENTS.iter().filter(|it| it.event == event).collect();
            assert_eq!(entries.len(), 1, "{}", event.name());
            let call = format!("{}(", event.name());
            assert!(
                entries[0].declaration.starts_with(&call) && entries[0].example.contains(&call),
                "{}",
                event.name()
            );
        }
        assert_eq!(EVENTS.len(), Event::all().count());
    }
}
