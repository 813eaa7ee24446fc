//! What another user of CUPTI asked of it, and which callbacks are whose.

use super::scoped;
use crate::cupti::functions::{CallbackFunction, CompleteFunction, Handle, RequestFunction};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering};

pub(super) const DOMAINS: usize = 8;
/// More than any domain has ids.
pub(in crate::cupti) const MOST_IDS: u32 = 2048;
const MOST_KINDS: u32 = 256;

/// Who wants the callbacks of an id: bits, so that a callback looks once for all.
static WANTED_BY: [[AtomicU8; MOST_IDS as usize]; DOMAINS] =
    [const { [const { AtomicU8::new(0) }; MOST_IDS as usize] }; DOMAINS];

/// Who wants a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cupti) struct WantedBy(u8);

impl WantedBy {
    /// Of a callback id.
    #[inline]
    pub(in crate::cupti) fn of(domain: u32, id: u32) -> Self {
        WantedBy(word(domain, id).map_or(0, |it| it.load(Ordering::Relaxed)))
    }

    /// Whether nobody but those who enable these does.
    #[inline]
    pub(in crate::cupti) fn are(self, ids: &Ids) -> bool {
        self.0 == ids.bit
    }

    /// Whether those who enable these are among them.
    #[inline]
    pub(in crate::cupti) fn has(self, ids: &Ids) -> bool {
        self.0 & ids.bit != 0
    }
}

#[inline]
pub(super) fn word(domain: u32, id: u32) -> Option<&'static AtomicU8> {
    WANTED_BY.get(domain as usize)?.get(id as usize)
}

/// A set of callback ids: those that somebody enabled.
#[derive(Debug)]
pub(in crate::cupti) struct Ids {
    /// In [`WANTED_BY`].
    pub(super) bit: u8,
}

impl Ids {
    #[inline]
    pub(in crate::cupti) fn has(&self, domain: u32, id: u32) -> bool {
        WantedBy::of(domain, id).has(self)
    }

    pub(in crate::cupti) fn set(&self, domain: u32, id: u32, on: bool) {
        word(domain, id).into_iter().for_each(|it| self.switch(it, on));
    }

    pub(super) fn set_domain(&self, domain: u32, on: bool) {
        let words = WANTED_BY.get(domain as usize).into_iter().flatten();
        words.for_each(|it| self.switch(it, on));
    }

    pub(super) fn switch(&self, word: &AtomicU8, on: bool) {
        if on {
            word.fetch_or(self.bit, Ordering::AcqRel)
        } else {
            word.fetch_and(!self.bit, Ordering::AcqRel)
        };
    }

    pub(super) fn is_empty_in(&self, domain: u32) -> bool {
        (0..MOST_IDS).all(|id| !self.has(domain, id))
    }

    /// Removes all, and passes each to `each`.
    pub(in crate::cupti) fn drain(&self, mut each: impl FnMut(u32, u32)) {
        for (words, domain) in WANTED_BY.iter().zip(0..) {
            for (word, id) in words.iter().zip(0..) {
                let has = |bits: u8| bits & self.bit != 0;
                if has(word.load(Ordering::Acquire)) && has(word.fetch_and(!self.bit, Ordering::AcqRel)) {
                    each(domain, id);
                }
            }
        }
    }
}

/// The callback ids that we enabled.
pub(in crate::cupti) static OURS: Ids = Ids { bit: 1 << 0 };

/// Those that twins depend on.
pub(in crate::cupti) static TWINS: Ids = Ids { bit: 1 << 1 };

/// The other user.
pub(in crate::cupti) static OTHER: Other = Other {
    function: AtomicPtr::new(null_mut()),
    user_data: AtomicPtr::new(null_mut()),
    ids: Ids { bit: 1 << 2 },
    subscription: AtomicPtr::new(null_mut()),
    alone: AtomicPtr::new(null_mut()),
    request: AtomicPtr::new(null_mut()),
    complete: AtomicPtr::new(null_mut()),
    kinds: [const { AtomicU64::new(0) }; MOST_KINDS as usize / 64],
    lent: AtomicU64::new(0),
    has_enabled: AtomicBool::new(false),
    has_flushed: AtomicBool::new(false),
    was_seen: AtomicBool::new(false),
};

/// What the other user asked of CUPTI.
#[derive(Debug)]
pub(in crate::cupti) struct Other {
    /// Its callback; null while it has no subscription.
    pub(super) function: AtomicPtr<c_void>,
    pub(super) user_data: AtomicPtr<c_void>,
    pub(super) ids: Ids,
    /// The handle that it shares with us, or that stayed when we left.
    pub(super) subscription: AtomicPtr<c_void>,
    /// The handle of a subscription that nobody shares.
    pub(super) alone: AtomicPtr<c_void>,
    pub(super) request: AtomicPtr<c_void>,
    pub(super) complete: AtomicPtr<c_void>,
    pub(super) kinds: [AtomicU64; MOST_KINDS as usize / 64],
    /// Buffers of its own that CUPTI has.
    pub(super) lent: AtomicU64,
    /// Whether it has enabled a kind, or unloaded CUPTI, since [`Other::begins`].
    pub(super) has_enabled: AtomicBool,
    /// Whether it has flushed since it disabled its last kind.
    pub(super) has_flushed: AtomicBool,
    pub(super) was_seen: AtomicBool,
}

impl Other {
    /// Whether anyone but us ever claimed CUPTI.
    pub(in crate::cupti) fn was_seen(&self) -> bool {
        self.was_seen.load(Ordering::Acquire)
    }

    pub(in crate::cupti) fn note(&self) {
        self.was_seen.store(true, Ordering::Release);
    }

    pub(in crate::cupti) fn is_subscribed(&self) -> bool {
        !self.function.load(Ordering::Acquire).is_null()
    }

    /// Whether it has a callback, and enabled this id.
    pub(in crate::cupti) fn wants(&self, domain: u32, id: u32) -> bool {
        self.is_subscribed() && self.ids.has(domain, id)
    }

    /// Returns its callback and the pointer that goes with it, if it is among those who want one.
    #[inline]
    pub(in crate::cupti) fn callback(&self, wanted: WantedBy) -> Option<(CallbackFunction, *mut c_void)> {
        let function = self.function.load(Ordering::Acquire);
        if function.is_null() || !wanted.has(&self.ids) {
            return None;
        }
        // SAFETY: stored by `subscribe`, from a function of this type.
        let function = unsafe { std::mem::transmute::<*mut c_void, CallbackFunction>(function) };
        Some((function, self.user_data.load(Ordering::Acquire)))
    }

    pub(super) fn subscribe(&self, handle: Handle, function: CallbackFunction, user_data: *mut c_void) {
        self.ids.drain(|_, _| ());
        self.subscription.store(handle, Ordering::Release);
        self.user_data.store(user_data, Ordering::Release);
        self.function.store(function as *mut c_void, Ordering::Release);
    }

    /// Notes that it has a subscription of its own, without us, or has ended it.
    pub(super) fn set_alone(&self, handle: Option<Handle>) {
        self.alone.store(handle.unwrap_or(null_mut()), Ordering::Release);
        self.note_use();
    }

    /// Returns the subscription that it has without us.
    pub(in crate::cupti) fn alone(&self) -> Option<Handle> {
        Some(self.alone.load(Ordering::Acquire)).filter(|it| !it.is_null())
    }

    pub(super) fn unsubscribe(&self) {
        self.function.store(null_mut(), Ordering::Release);
        self.subscription.store(null_mut(), Ordering::Release);
    }

    /// Whether this is the subscription that it got from us.
    pub(super) fn shares(&self, handle: Handle) -> bool {
        self.is_subscribed() && self.subscription.load(Ordering::Acquire) == handle
    }

    /// Returns the subscription that stayed when an earlier run left.
    pub(in crate::cupti) fn subscription(&self) -> Option<Handle> {
        Some(self.subscription.load(Ordering::Acquire)).filter(|it| !it.is_null())
    }

    /// Whether the subscription must stay when a run leaves. If it enables kinds of records while nobody is
    /// subscribed, and a later run subscribes then, CUPTI crashes at the next launch (seen with 13.0).
    pub(in crate::cupti) fn needs_subscription(&self) -> bool {
        self.is_subscribed() || self.is_registered()
    }

    /// Takes over the subscription of a run that leaves.
    pub(in crate::cupti) fn keep(&self, handle: Handle) {
        self.subscription.store(handle, Ordering::Release);
    }

    /// Returns the subscription to a run that comes.
    pub(in crate::cupti) fn adopted(&self) {
        if !self.is_subscribed() {
            self.subscription.store(null_mut(), Ordering::Release);
        }
    }

    pub(super) fn register(&self, request: RequestFunction, complete: CompleteFunction) {
        self.complete.store(complete as *mut c_void, Ordering::Release);
        self.request.store(request as *mut c_void, Ordering::Release);
    }

    pub(in crate::cupti) fn is_registered(&self) -> bool {
        !self.request.load(Ordering::Acquire).is_null()
    }

    /// Returns its function that provides buffers.
    pub(in crate::cupti) fn request(&self) -> Option<RequestFunction> {
        let function = self.request.load(Ordering::Acquire);
        // SAFETY: null, or stored by `register` from a function of this type.
        unsafe { std::mem::transmute::<*mut c_void, Option<RequestFunction>>(function) }
    }

    /// Returns its function that takes buffers.
    pub(in crate::cupti) fn complete(&self) -> Option<CompleteFunction> {
        let function = self.complete.load(Ordering::Acquire);
        // SAFETY: as above.
        unsafe { std::mem::transmute::<*mut c_void, Option<CompleteFunction>>(function) }
    }

    /// Notes that it gets the records now.
    pub(in crate::cupti) fn begins(&self) {
        self.has_enabled.store(self.gets_records(), Ordering::Release);
    }

    /// Whether it has used the records since it got them, rather than only prepared for that.
    pub(in crate::cupti) fn has_enabled(&self) -> bool {
        self.has_enabled.load(Ordering::Acquire)
    }

    /// Notes that it has used the records, as when it enables a kind: from now on it may be done with them.
    pub(super) fn note_use(&self) {
        self.has_enabled.store(true, Ordering::Release);
    }

    pub(super) fn set_kind(&self, kind: u32, on: bool) {
        self.has_enabled.fetch_or(on, Ordering::AcqRel);
        self.has_flushed.fetch_and(!on, Ordering::AcqRel);
        let Some(word) = self.kinds.get(kind as usize / 64) else { return };
        let bit = 1 << (kind % 64);
        if on {
            word.fetch_or(bit, Ordering::AcqRel)
        } else {
            word.fetch_and(!bit, Ordering::AcqRel)
        };
    }

    pub(super) fn kinds(&self) -> impl Iterator<Item = u32> + '_ {
        (0..MOST_KINDS).filter(|it| self.kinds[*it as usize / 64].load(Ordering::Acquire) & 1 << (it % 64) != 0)
    }

    /// Notes that it has flushed.
    pub(super) fn flushed(&self) {
        self.has_flushed.store(!self.gets_records(), Ordering::Release);
    }

    /// Whether it has flushed since it disabled its last kind.
    pub(in crate::cupti) fn has_flushed(&self) -> bool {
        self.has_flushed.load(Ordering::Acquire)
    }

    /// Whether it gets records: it has enabled a kind, and provides buffers.
    pub(in crate::cupti) fn gets_records(&self) -> bool {
        self.is_registered() && self.kinds.iter().any(|it| it.load(Ordering::Acquire) != 0)
    }

    /// Counts a buffer of its own that CUPTI got or gave back.
    pub(in crate::cupti) fn lent(&self, gets: bool) {
        if gets {
            self.lent.fetch_add(1, Ordering::AcqRel);
        } else {
            let less = |it: u64| it.checked_sub(1);
            let _ = self.lent.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        }
    }

    /// Whether CUPTI has a buffer of its own.
    pub(in crate::cupti) fn has_lent(&self) -> bool {
        self.lent.load(Ordering::Acquire) != 0
    }

    /// Whether nothing of it depends on us.
    pub(super) fn is_independent(&self) -> bool {
        !scoped::is_used() && !self.is_subscribed() && !self.is_registered() && self.alone().is_none()
    }

    /// Forgets everything, as `cuptiFinalize` does.
    pub(super) fn forget(&self) {
        self.unsubscribe();
        self.alone.store(null_mut(), Ordering::Release);
        self.request.store(null_mut(), Ordering::Release);
        self.complete.store(null_mut(), Ordering::Release);
        self.kinds.iter().for_each(|it| it.store(0, Ordering::Release));
        self.lent.store(0, Ordering::Release);
        self.note_use();
        self.ids.drain(|_, _| ());
    }
}
