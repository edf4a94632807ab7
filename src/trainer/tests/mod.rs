mod evaluation;
mod exact;
mod npz;
mod oracle;
mod stale;
mod streams;
