//! The HTTP half, driven through real sockets in front of an engine that each test scripts.
//! Content is asserted, not only statuses.

mod answers;
mod cancel;
mod endpoints;
mod faults;
mod fields;
mod garbage;
mod limits;
mod logs;
mod one_meaning;
mod origins;
mod page;
mod reading;
mod requests;
mod scrapers;
mod several;
mod streams;
mod support;
mod tools;
