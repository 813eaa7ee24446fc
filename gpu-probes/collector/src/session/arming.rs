//! Arming: what the demand says, asked of CUPTI.

use super::{CURRENT, Phase, Session, Setup};
use crate::calls::{IDS, REQUIRED};
use crate::cupti::{
    self, ATTRIBUTE_PER_THREAD_BUFFER, ATTRIBUTE_ZEROED_BUFFERS, CallbackFunction, Handle, KIND_CONCURRENT_KERNEL,
    SUCCESS,
};
use std::sync::atomic::Ordering;
use xputrace_wire::message::demand;
use xputrace_wire::record::{Thread, kind};

/// Why arming failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// CUPTI's result, 0 where it was not CUPTI.
    pub result: u32,
    pub text: String,
}

impl From<String> for Refusal {
    fn from(text: String) -> Self {
        Refusal { result: 0, text }
    }
}

impl Session {
    /// Arms what the demand says, and makes the session the current one.
    ///
    /// # Errors
    /// What CUPTI refused, undone as far as it had been done.
    pub(crate) fn arm(setup: Setup) -> Result<&'static Session, Refusal> {
        let session: &'static Session = Box::leak(Box::new(Session::new(setup)?));
        session.modules.refresh();
        CURRENT.store(std::ptr::from_ref(session).cast_mut(), Ordering::Release);
        // Recording begins before CUPTI does, so that nothing it delivers is turned away.
        session.phase.set(Phase::Armed);
        if let Err(refusal) = session.arm_callbacks().and_then(|()| session.arm_activity()) {
            session.undo();
            return Err(refusal);
        }
        session.write_first_records();
        Ok(session)
    }

    fn arm_callbacks(&'static self) -> Result<(), Refusal> {
        if !self.wants(demand::LAUNCHES) {
            return Ok(());
        }
        self.subscribe()?;
        for it in IDS {
            let answer = self.enable_callback(it.domain, it.id, true)?;
            if answer != SUCCESS && REQUIRED.contains(&(it.domain, it.id)) {
                return Err(self.refusal(&format!("cuptiEnableCallback for {}", it.name), answer));
            }
        }
        if self.wants(demand::STREAMS) {
            let answer = self.enable_callback(cupti::domain::RESOURCE, cupti::RESOURCE_STREAM_CREATED, true)?;
            // Where CUPTI does not tell of new streams, ids are asked for at each launch.
            self.stream_epoch.store(u64::from(answer == SUCCESS), Ordering::Release);
        }
        Ok(())
    }

    pub(super) fn subscribe(&'static self) -> Result<(), Refusal> {
        let subscribe = self.cupti.subscribe.ok_or_else(|| missing("cuptiSubscribe"))?;
        let mut handle: Handle = std::ptr::null_mut();
        let user_data = std::ptr::from_ref(self).cast_mut().cast();
        // SAFETY: a live pointer; the session and the callback stay for ever.
        let answer = unsafe { subscribe(&mut handle, crate::entry::CALLBACK as CallbackFunction, user_data) };
        if answer != SUCCESS {
            return Err(self.refusal("cuptiSubscribe", answer));
        }
        self.subscriber.store(handle, Ordering::Release);
        Ok(())
    }

    pub(super) fn enable_callback(&self, domain: u32, id: u32, on: bool) -> Result<u32, Refusal> {
        let enable = self.cupti.enable_callback.ok_or_else(|| missing("cuptiEnableCallback"))?;
        // SAFETY: our own subscription.
        Ok(unsafe { enable(u32::from(on), self.subscriber.load(Ordering::Acquire), domain, id) })
    }

    fn arm_activity(&self) -> Result<(), Refusal> {
        if !self.wants(demand::KERNELS) {
            return Ok(());
        }
        let register = self.cupti.register_callbacks.ok_or_else(|| missing("cuptiActivityRegisterCallbacks"))?;
        let enable = self.cupti.enable.ok_or_else(|| missing("cuptiActivityEnable"))?;
        self.cupti.flush_all.ok_or_else(|| missing("cuptiActivityFlushAll"))?;
        self.cupti.next_record.ok_or_else(|| missing("cuptiActivityGetNextRecord"))?;
        // Neither is needed: without them CUPTI zeroes buffers itself, and takes one a thread.
        self.set_attribute(ATTRIBUTE_ZEROED_BUFFERS, 1);
        self.set_attribute(ATTRIBUTE_PER_THREAD_BUFFER, 0);
        // SAFETY: functions that stay for ever.
        let answer = unsafe { register(crate::entry::request_buffer, crate::entry::complete_buffer) };
        if answer != SUCCESS {
            return Err(self.refusal("cuptiActivityRegisterCallbacks", answer));
        }
        // SAFETY: no pointers.
        let answer = unsafe { enable(KIND_CONCURRENT_KERNEL) };
        if answer != SUCCESS {
            return Err(self.refusal("cuptiActivityEnable for kernels", answer));
        }
        Ok(())
    }

    fn set_attribute(&self, attribute: u32, value: u8) {
        let (mut value, mut size) = (value, 1usize);
        if let Some(set) = self.cupti.set_attribute {
            // SAFETY: one byte and its size, both live.
            unsafe { set(attribute, &mut size, (&raw mut value).cast()) };
        }
    }

    fn refusal(&self, attempted: &str, result: u32) -> Refusal {
        Refusal { result, text: format!("{attempted}: {}", self.cupti.explain(result)) }
    }

    /// Takes back what arming did, where it cannot go on.
    pub(crate) fn abandon(&self) {
        self.undo();
    }

    fn undo(&self) {
        self.phase.set(Phase::Left);
        self.disable_activity();
        self.unsubscribe();
        self.forget();
    }

    fn write_first_records(&'static self) {
        let mut comm = [0u8; 16];
        if let Ok(text) = std::fs::read("/proc/self/comm") {
            let text = text.strip_suffix(b"\n").unwrap_or(&text);
            let len = text.len().min(comm.len() - 1);
            comm[..len].copy_from_slice(&text[..len]);
        }
        let thread = Thread { tid: self.pid, reserved: 0, comm };
        self.write_waiting(kind::THREAD, &thread, &[]);
        self.mappings.changed();
        self.send_mappings();
    }
}

fn missing(function: &str) -> Refusal {
    Refusal::from(format!("this libcupti has no {function}"))
}
