//! The agent in this process, with a vendor that is a test: between its machine and a simulated tracer.
#![allow(
    dead_code,
    clippy::undocumented_unsafe_blocks,
    unsafe_op_in_unsafe_fn,
    unreachable_pub,
    reason = "tests play the tracer with the same raw calls"
)]

#[path = "fake/plain.rs"]
mod plain;
mod suite;

use plain::Plain;
use suite::machine::{self, Machine};
use suite::{ALL, SHAPE, alone, arm, disarm, refused};
use xputrace_agent::Dormant;
use xputrace_wire::message::{REFUSED, demand};
use xputrace_wire::record::Launch;
use xputrace_wire::region::Lost;

suite!(super::Plain);

#[test]
fn a_test_that_fails_leaves_no_run_to_the_next_one() {
    let failed = std::panic::catch_unwind(|| {
        let _alone = alone::<Plain>();
        let _tracer = arm::<Plain>(ALL, SHAPE);
        std::panic::resume_unwind(Box::new("on purpose"))
    });
    assert!(failed.is_err());
    let _alone = alone::<Plain>();
    let mut tracer = arm::<Plain>(ALL, SHAPE);
    disarm::<Plain>(&mut tracer);
}

/// What it submitted may have ended, and be in a buffer that the flush leaves out.
#[test]
fn a_flush_reaches_no_further_than_the_launch_that_is_under_way() {
    let _alone = alone::<Plain>();
    let mut tracer = arm::<Plain>(ALL, SHAPE);
    let under_way = plain::enters_only();
    let before = tracer.flushes().len();
    tracer.until("flushes", |it| it.flushes().len() >= before + 3);
    // The first may have begun before the launch did.
    let meanwhile: Vec<u64> = tracer.flushes()[before + 1..].iter().map(|it| it.began).collect();
    plain::returns_only(Some(under_way));
    let after = tracer.flushes().len();
    tracer.until("later flushes", |it| it.flushes().len() >= after + 2 && !it.launches().is_empty());
    let start = tracer.launches()[0].start;
    assert!(meanwhile.iter().all(|it| *it <= start), "{meanwhile:?} {start}");
    assert!(tracer.flushes().last().unwrap().began > start);
    disarm::<Plain>(&mut tracer);
}

/// It may have read the clock, and not have written its record yet.
#[test]
fn a_flush_reaches_no_further_than_a_thread_that_is_held_up_inside() {
    let _alone = alone::<Plain>();
    let mut tracer = arm::<Plain>(ALL, SHAPE);
    let before = tracer.flushes().len();
    tracer.until("flushes", |it| it.flushes().len() >= before + 2);
    let seen_outside = tracer.flushes().last().unwrap().began;
    let mut meanwhile = Vec::new();
    plain::agent().unwrap().guarded(|| {
        let before = tracer.flushes().len();
        tracer.until("flushes meanwhile", |it| it.flushes().len() >= before + 3);
        // The first may have begun before.
        meanwhile = tracer.flushes()[before + 1..].iter().map(|it| it.began).collect();
    });
    assert!(meanwhile.iter().all(|it| *it >= seen_outside && *it == meanwhile[0]), "{seen_outside} {meanwhile:?}");
    tracer.until("later flushes", |it| it.flushes().last().unwrap().began > meanwhile[0]);
    disarm::<Plain>(&mut tracer);
}

/// The simulated backend only records kernels.
#[test]
fn a_launch_that_is_under_way_when_we_arm_is_outside() {
    let _alone = alone::<Plain>();
    let mut tracer = arm::<Plain>(ALL, SHAPE);
    let earlier = plain::returns_only(None);
    let later = Plain::launch(c"_Z1fv", 7, 0);
    plain::returns_only(Some(later));
    tracer.until("both launches", |it| it.launches().len() == 2);
    let all = tracer.launches();
    let flags = |id| all.iter().find(|it| it.correlation == id).map(|it| it.flags & Launch::OUTSIDE);
    assert_eq!((flags(earlier), flags(later)), (Some(Launch::OUTSIDE), Some(0)));
    let third = Plain::launch(c"_Z1fv", 7, 0);
    tracer.until("the third", |it| it.launches().iter().any(|it| it.correlation == third));
    assert_eq!(tracer.launches().len(), 3, "the runtime's return is none besides the driver's call inside");
    disarm::<Plain>(&mut tracer);
}

#[test]
fn a_runs_memory_is_given_back_when_nobody_is_inside() {
    let _alone = alone::<Plain>();
    let regions = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|it| it.contains("/memfd:")).count()
    };
    let before = regions();
    let mut tracer = arm::<Plain>(ALL, SHAPE);
    let agent = plain::agent().unwrap();
    let (comes_in, is_inside) = std::sync::mpsc::channel();
    let (says, may_leave) = std::sync::mpsc::channel::<()>();
    let inside = std::thread::spawn(move || {
        assert!(agent.guarded(|| {
            comes_in.send(()).unwrap();
            may_leave.recv().unwrap();
            agent.count_unexpected();
        }));
    });
    is_inside.recv().unwrap();
    disarm::<Plain>(&mut tracer);
    assert!(regions() >= before + 2, "the region is there, in the tracer and in us: a thread is inside");
    says.send(()).unwrap();
    inside.join().unwrap();
    assert_eq!(tracer.lost(Lost::Unexpected), 1, "what it did inside was no harm");
    tracer.until("closing", |_| !agent.guarded(|| ()));

    Plain::reset();
    let mut again = arm::<Plain>(ALL, SHAPE);
    let armed = regions();
    disarm::<Plain>(&mut again);
    again.until("giving back", |_| regions() < armed);
}

#[test]
fn what_the_backend_cannot_serve_is_refused_by_name() {
    let _alone = alone::<Plain>();
    let dormant = refused(
        |listener| {
            let refused = listener.arm(demand::MEMSETS, SHAPE).message();
            assert_eq!(refused.kind, REFUSED);
            assert!(refused.text.contains("cannot record everything requested"), "{}", refused.text);
        },
        Plain::world,
    );
    assert!(matches!(dormant, Dormant::Refused(_)));
}
