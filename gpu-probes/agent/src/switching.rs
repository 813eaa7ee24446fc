//! What is recorded changes while the run goes on: a script switches probes on and off.
//!
//! ```text
//! tracer      ── SWITCH(order) ──┐
//! backend     ── has the old ────┴─ widened to both ──────────────┬─ narrowed to the new
//! launches    ── under the old ─────────────┬─ under the new ─────┴──────────────────────
//! ```
//! The backend is widened before the first launch is recorded under the new order, and narrowed after a flush period:
//! so every launch of either order has what it asks for, and calls under way are seen to return. Each launch is
//! recorded under one order as a whole, and says which ([`xputrace_wire::message::demand::recorded_under`]).

use super::clock::now;
use super::{Agent, ArmRefusal, Order};
use std::sync::atomic::Ordering;
use xputrace_wire::events::HostEvent;
use xputrace_wire::message::demand;

impl Agent {
    /// Handles the tracer's wish to record something else from now on.
    pub(crate) fn ask_for(&self, order: Order) {
        self.switching.orders().asked = Some(Order { demand: order.demand & self.demand, ..order });
    }

    /// Does what the tracer asked for, if anything. Called by the control thread; ends the run if it fails.
    pub(crate) fn switch_or_leave(&'static self) {
        if self.switching.orders().asked.is_none() {
            return;
        }
        let switched = self.while_window_stays(|is_resumed| self.switch(is_resumed)).transpose();
        if let Err(refusal) = switched {
            self.end_with(refusal);
        }
        self.settle_or_leave();
    }

    fn switch(&'static self, is_resumed: bool) -> Result<(), ArmRefusal> {
        let Some((asked, armed)) = ({
            let mut orders = self.switching.orders();
            orders.asked.take().map(|asked| (asked, orders.armed))
        }) else {
            return Ok(());
        };
        let both = armed.with(&asked);
        if is_resumed {
            self.backend.switch(self, &armed, &both)?;
        }
        const LAYERS: u64 = demand::OUTERMOST | demand::HOST_NESTED;
        if both.demand & !armed.demand & LAYERS != 0 {
            self.switching.layers_added.fetch_add(1, Ordering::AcqRel);
        }
        let before = self.switching.demand();
        let at = now();
        if adds_history(before, asked.demand) {
            self.window.note_switch(at);
        }
        let armed = if is_resumed { both } else { asked };
        let mut orders = self.switching.orders();
        (orders.now, orders.armed, orders.switched_at) = (asked, armed, at);
        drop(orders);
        self.switching.demand.store(asked.demand, Ordering::Release);
        Ok(())
    }

    /// Lets the backend forget what is no longer asked for, once it has not been for a while. Called by the control
    /// thread.
    pub(crate) fn narrow_if_idle(&'static self) {
        let (armed, wanted, switched_at) = {
            let orders = self.switching.orders();
            (orders.armed, orders.now, orders.switched_at)
        };
        let is_idle = now().saturating_sub(switched_at) >= self.flush_period.as_nanos() as u64;
        if armed == wanted || !is_idle {
            return;
        }
        let narrowed = self.while_window_stays(|is_resumed| {
            if is_resumed {
                self.backend.switch(self, &armed, &wanted)?;
                self.window.note_pause();
                self.forget_calls();
            }
            self.switching.orders().armed = wanted;
            Ok(())
        });
        if let Some(Err(refusal)) = narrowed {
            self.end_with(refusal);
        }
        self.settle_or_leave();
    }
}

/// Whether something was not recorded, and is from now on, that later events are told by: activities, and where events
/// were recorded that are waited for.
fn adds_history(before: u64, after: u64) -> bool {
    let added = after & !before;
    !demand::activities_of(added).is_empty() || demand::host_events_of(added).contains(HostEvent::EventRecord)
}

#[cfg(test)]
mod tests {
    use super::*;
    use xputrace_wire::events::{Activities, Activity, HostEvents};

    #[test]
    fn history_begins_anew_where_what_it_is_made_of_was_not_recorded() {
        let kernels = demand::activities(Activities::of(&[Activity::Kernel]));
        let [waits, records] =
            [HostEvent::Wait, HostEvent::EventRecord].map(|it| demand::host_events(HostEvents::of(&[it])));
        assert!(adds_history(0, kernels));
        assert!(
            adds_history(kernels | waits, kernels | waits | records),
            "an event may have been recorded elsewhere since"
        );
        assert!(!adds_history(kernels, kernels | waits), "nothing is told by waits");
        assert!(!adds_history(kernels | records, kernels));
    }
}
