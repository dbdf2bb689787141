//! The door in front of scripted engines: real sockets, engines that go wrong in every way that routers
//! were tried with, and answers whose content is looked at.

mod content;
mod failures;
mod identity;
mod leaving;
mod limits;
mod retries;
mod routing;
mod spans;
mod support;
mod traces;
