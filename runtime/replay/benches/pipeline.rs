//! Events per second for decoding, joining, ordering, a handler and its table, on one core. An
//! event is a kernel record with its launch; the handler is `@time[k.name, k.launch.tid,
//! joined].sum(k.duration)`. Measures synthetic records, and a recording of an LLM's inference on
//! an H200.

#[path = "../../pipeline/tests/common/mod.rs"]
mod common;

use common::*;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use xputrace_model::context::word;
use xputrace_pipeline::{Pipeline, ProcessIndex};
use xputrace_recording::{RecordingEntry, RecordingReader};
use xputrace_wire::record::{Kernel, Launch};

const DRAINS: u64 = 20;
const EVENTS_A_DRAIN: u64 = 10_000;

/// Returns drains of four launching threads. Kernels follow their launches by 20 us; each drain's
/// last ones come with the next drain.
fn drains() -> Vec<Vec<Vec<u8>>> {
    let lag = 500;
    let total = DRAINS * EVENTS_A_DRAIN;
    let mut drains = Vec::new();
    for drain in 0..DRAINS {
        let (from, to) = (drain * EVENTS_A_DRAIN, (drain + 1) * EVENTS_A_DRAIN);
        let mut rings = vec![Ring::default(); 5];
        if drain == 0 {
            rings[0] = Ring::default().names();
        }
        for n in from..to {
            let ring = (n % 4) as usize;
            let it =
                Launch { tid: 70 + ring as u32, symbol: 1 + (n as u32 & 1), ..launch(n as u32 * 3 + 1, n * 1_000) };
            rings[ring] = std::mem::take(&mut rings[ring]).launch(it);
        }
        rings[4] = std::mem::take(&mut rings[4]).clock(from * 1_000);
        let last = if drain + 1 == DRAINS { total } else { to - lag };
        for n in from.saturating_sub(lag)..last {
            let start = n * 1_000 + 20_000 + n % 7 * 300;
            let it = Kernel { symbol: 1 + (n as u32 & 1), ..kernel(n as u32 * 3 + 1, start, start + 700) };
            rings[4] = std::mem::take(&mut rings[4]).kernel(it);
        }
        rings[4] = std::mem::take(&mut rings[4]).flush(to * 1_000);
        drains.push(rings.into_iter().map(|it| it.0).collect());
    }
    drains
}

/// Returns the recording's drains, decompressed, so that reading the file is not measured.
fn recorded() -> Vec<Vec<Vec<u8>>> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/replay/llm.xpt");
    let entries = RecordingReader::open(&path).expect("the recording is in the repository");
    let wire = |it| match it {
        RecordingEntry::Wire { rings, .. } => Some(rings),
        _ => None,
    };
    entries.filter_map(wire).collect()
}

fn replayed(mut pipeline: Pipeline, drains: &[Vec<Vec<u8>>]) -> Pipeline {
    let mut sink = Recorder::default();
    drains.iter().for_each(|it| pipeline.feed(ProcessIndex(0), it, &mut sink));
    pipeline.finish(&mut sink);
    pipeline
}

fn fed(mut pipeline: Pipeline, drains: &[Vec<Vec<u8>>]) -> Pipeline {
    let mut sink = Recorder::default();
    drains.iter().for_each(|it| pipeline.feed(ProcessIndex(0), it, &mut sink));
    pipeline.finish(&mut sink);
    assert_eq!(pipeline.account().launches().joined, DRAINS * EVENTS_A_DRAIN);
    pipeline
}

fn bench(c: &mut Criterion) {
    let drains = drains();
    let compiled_only = |handlers: bool| {
        let mut plan = kernel_plan();
        plan.probes.truncate(usize::from(handlers));
        // The compiler says so, too.
        let reads = [word::NAME, word::LAUNCH_TID, word::JOINED, word::DURATION];
        plan.probes.iter_mut().for_each(|it| it.reads = Some(reads.into_iter().collect()));
        pipeline(plan)
    };
    let mut group = c.benchmark_group("pipeline");
    group.throughput(Throughput::Elements(DRAINS * EVENTS_A_DRAIN));
    group.sample_size(20);
    group.bench_function("join + handler + table", |b| {
        b.iter_batched(|| compiled_only(true), |it| fed(it, &drains), BatchSize::LargeInput);
    });
    group.bench_function("join alone", |b| {
        b.iter_batched(|| compiled_only(false), |it| fed(it, &drains), BatchSize::LargeInput);
    });
    group.finish();

    let recorded = recorded();
    let joined = replayed(compiled_only(true), &recorded).account().launches().joined;
    let mut group = c.benchmark_group("recording of an LLM");
    group.throughput(Throughput::Elements(joined));
    group.sample_size(30);
    group.bench_function("join + handler + table", |b| {
        b.iter_batched(|| compiled_only(true), |it| replayed(it, &recorded), BatchSize::LargeInput);
    });
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
