mod exact;
mod npz;
mod oracle;
mod ranks;
mod stale;
mod streams;
