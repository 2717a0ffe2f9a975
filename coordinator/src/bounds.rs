//! Bounds for the texts of a status, whatever they contain: names of objects, messages of agents, answers of the API server.

use std::borrow::Cow;

use api::MigrationStatus;
use engine::words::cut;

/// Bytes of the current message. A status has it five times: as the message, in the conditions, and as the reason for waiting.
pub const MESSAGE: usize = 4096;
/// Bytes of the message with the note that is added at a standstill.
const WHOLE_MESSAGE: usize = 6144;
/// Bytes of a reason that is written once.
pub const REASON: usize = 2048;
/// Bytes of one foreign change, or of one name of an object.
pub const DRIFT: usize = 1024;

/// Cuts the text to at most this number of bytes.
pub fn cut_to(text: &mut String, bytes: usize) {
    if let Cow::Owned(short) = cut(text, bytes) {
        *text = short;
    }
}

/// Cuts every shared text of a status whose length depends on the content of the cluster.
pub fn cut_texts(status: &mut MigrationStatus) {
    cut_to(&mut status.message, WHOLE_MESSAGE);
    if let Some(standstill) = &mut status.wait {
        cut_to(&mut standstill.message, MESSAGE);
    }
    if let Some(breach) = &mut status.breach {
        cut_to(&mut breach.message, REASON);
    }
    for what in status.drift.iter_mut().flat_map(|drift| &mut drift.differences) {
        cut_to(what, DRIFT);
    }
}
