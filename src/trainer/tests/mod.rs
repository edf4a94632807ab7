mod exact;
mod npz;
mod oracle;
mod streams;
