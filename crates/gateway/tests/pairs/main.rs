//! The engine over pairs, against scripted workers: real processes' certificates, sockets and
//! messages, whose every word the test says.

mod answers;
mod endings;
mod losses;
mod peers;
mod readers;
mod support;
mod traces;
