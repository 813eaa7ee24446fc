//! Our subscription, and what is asked of CUPTI for it: by functions that name it where subscribers share CUPTI, else
//! by those that name none.

use super::arming::missing;
use super::others::{self, OTHER, scoped};
use super::{
    ATTRIBUTE_LATENCY_TIMESTAMPS, CuptiBackend, CuptiResult, EARLIER_NAME_BYTES, ERROR_NOT_COMPATIBLE, Handle,
    KIND_CONCURRENT_KERNEL, SUCCESS, SubscriberParameters, entry,
};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use xputrace_agent::ArmRefusal;

/// Whether we have used CUPTI by functions that name no subscriber: it then refuses those that do, for good.
static HAS_SUBSCRIBED_ALONE: AtomicBool = AtomicBool::new(false);

impl CuptiBackend {
    /// Subscribes, or takes the subscription that an earlier run has left because of another user.
    pub(super) fn subscribe(&'static self) -> Result<(), ArmRefusal> {
        if let Some(handle) = OTHER.subscription() {
            self.subscriber.store(handle, Ordering::Release);
            OTHER.adopted();
            return Ok(());
        }
        let handle = match self.subscribe_beside_others() {
            Some(handle) => handle,
            None => self.subscribe_alone()?,
        };
        self.subscriber.store(handle, Ordering::Release);
        Ok(())
    }

    /// Subscribes as one of several; `None` if this CUPTI has no such subscribers, its driver lacks them, or it is
    /// already used by functions that name none.
    ///
    /// Not where other users' calls don't come to us, since CUPTI refuses such functions from then on.
    fn subscribe_beside_others(&self) -> Option<Handle> {
        if !self.cupti.has_several_subscribers()
            || !others::is_installed()
            || HAS_SUBSCRIBED_ALONE.load(Ordering::Acquire)
        {
            return None;
        }
        let mut handle: Handle = null_mut();
        let mut earlier_name = [0; EARLIER_NAME_BYTES];
        let mut sharing = SubscriberParameters::sharing(c"xputrace".as_ptr(), &mut earlier_name);
        let subscribe = self.cupti.subscribe_v2?;
        // SAFETY: live pointers; the callback stays for ever.
        let answer = unsafe { subscribe(&mut handle, entry::CALLBACK, null_mut(), &mut sharing) };
        if answer != SUCCESS {
            return None;
        }
        // CUPTI tells only then that records were asked for by functions that name no subscriber.
        let disable = self.cupti.disable_v2?;
        // SAFETY: our own subscription.
        if unsafe { disable(handle, KIND_CONCURRENT_KERNEL, null_mut()) } == ERROR_NOT_COMPATIBLE {
            // SAFETY: as above, given up once.
            self.cupti.unsubscribe.inspect(|it| _ = unsafe { it(handle) });
            return None;
        }
        scoped::begin(&self.cupti);
        if earlier_name[0] != 0 {
            OTHER.note();
        }
        // The choice is for all subscribers, and stays.
        self.whole_graphs.store(false, Ordering::Relaxed);
        Some(handle)
    }

    /// Subscribes as the only one.
    fn subscribe_alone(&self) -> Result<Handle, ArmRefusal> {
        let subscribe = self.cupti.subscribe.ok_or_else(|| missing("cuptiSubscribe"))?;
        let mut handle: Handle = null_mut();
        // SAFETY: a live pointer; the callback stays for ever.
        let answer = unsafe { subscribe(&mut handle, entry::CALLBACK, null_mut()) };
        if answer != SUCCESS {
            return Err(self.refusal("cuptiSubscribe", answer));
        }
        HAS_SUBSCRIBED_ALONE.store(true, Ordering::Release);
        Ok(handle)
    }

    /// Our subscription, where subscribers share CUPTI.
    pub(super) fn scope(&self) -> Option<Handle> {
        scoped::is_used().then(|| self.subscriber.load(Ordering::Acquire))
    }

    /// Enables a kind of records; `None` if this CUPTI lacks the function, as below.
    pub(super) fn enable_kind(&self, kind: u32) -> Option<CuptiResult> {
        // SAFETY: our own subscription, and whole records.
        Some(unsafe {
            match self.scope() {
                Some(subscriber) => self.cupti.enable_v2?(subscriber, kind, null_mut()),
                None => self.cupti.enable?(kind),
            }
        })
    }

    pub(super) fn disable_kind(&self, kind: u32) -> Option<CuptiResult> {
        // SAFETY: our own subscription.
        Some(unsafe {
            match self.scope() {
                Some(subscriber) => self.cupti.disable_v2?(subscriber, kind, null_mut()),
                None => self.cupti.disable?(kind),
            }
        })
    }

    /// Registers our functions for buffers.
    pub(super) fn register(&self) -> Option<CuptiResult> {
        // SAFETY: functions that stay for ever, and our own subscription.
        Some(unsafe {
            match self.scope() {
                Some(it) => self.cupti.register_callbacks_v2?(it, entry::request_scoped, entry::complete_scoped),
                None => self.cupti.register_callbacks?(entry::request_buffer, entry::complete_buffer),
            }
        })
    }

    /// Has kernel records tell when kernels were queued and submitted.
    pub(super) fn enable_latencies(&self) -> Option<CuptiResult> {
        match self.scope() {
            Some(_) => self.set_attribute(ATTRIBUTE_LATENCY_TIMESTAMPS, 1),
            // SAFETY: no pointers.
            None => Some(unsafe { self.cupti.enable_latency_timestamps?(1) }),
        }
    }

    /// Steps to the next record.
    ///
    /// # Safety
    /// CUPTI filled `valid` bytes at `buffer`; `record` is null or one of its records.
    pub(super) unsafe fn step(&self, buffer: *mut u8, valid: usize, record: &mut *mut u8) -> Option<CuptiResult> {
        // SAFETY: the caller promises that CUPTI filled `valid` bytes at `buffer` and that `record` is null or one of
        // its records; the subscription is our own.
        Some(unsafe {
            match self.scope() {
                Some(subscriber) => self.cupti.next_record_v2?(subscriber, buffer, valid, record),
                None => self.cupti.next_record?(buffer, valid, record),
            }
        })
    }

    /// Returns how many records were dropped since it was last asked.
    pub(super) fn dropped(&self) -> Option<usize> {
        let mut dropped = 0usize;
        // SAFETY: a live usize, and our own subscription; context and stream are ignored by CUPTI.
        let answer = unsafe {
            match self.scope() {
                Some(subscriber) => self.cupti.dropped_records_v2?(subscriber, null_mut(), 0, &mut dropped),
                None => self.cupti.dropped_records?(null_mut(), 0, &mut dropped),
            }
        };
        (answer == SUCCESS).then_some(dropped)
    }

    pub(super) fn set_attribute(&self, attribute: u32, value: u8) -> Option<CuptiResult> {
        let (mut value, mut size) = (value, 1usize);
        let value = (&raw mut value).cast();
        // SAFETY: one byte and its size, both live, and our own subscription.
        Some(unsafe {
            match self.scope() {
                Some(subscriber) => self.cupti.set_attribute_v2?(subscriber, attribute, &mut size, value),
                None => self.cupti.set_attribute?(attribute, &mut size, value),
            }
        })
    }

    pub(super) fn attribute(&self, attribute: u32) -> Option<u8> {
        let (mut value, mut size) = (0u8, 1usize);
        let to = (&raw mut value).cast();
        // SAFETY: one byte and its size, both live, and our own subscription.
        let answer = unsafe {
            match self.scope() {
                Some(subscriber) => self.cupti.get_attribute_v2?(subscriber, attribute, &mut size, to),
                None => self.cupti.get_attribute?(attribute, &mut size, to),
            }
        };
        (answer == SUCCESS).then_some(value)
    }
}
