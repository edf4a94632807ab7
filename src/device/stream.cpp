// Streams and events of whatever backend libtorch has loaded, by way of c10's virtual device guard; no header of any backend.
//
// The CPU has a twin of its own here, since c10's guard for it throws on events: work on the CPU is done when its call returns,
// so a recorded event is past and waiting for it is nothing. Nothing thrown leaves this file: a function returns 0, or 1 and the
// words are in tidemill_stream_error.

#include <ATen/core/TensorBase.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

struct RawStream {
  int64_t id;
  int32_t index;
  int32_t kind;  // c10::DeviceType
};

namespace {

thread_local std::string error;

bool on_cpu(const RawStream& stream) { return stream.kind == static_cast<int32_t>(c10::DeviceType::CPU); }

c10::Device device(const RawStream& stream) {
  return c10::Device(static_cast<c10::DeviceType>(stream.kind), static_cast<c10::DeviceIndex>(stream.index));
}

c10::Stream unpack(const RawStream& stream) {
  auto at = device(stream);
  return c10::Stream::unpack3(stream.id, at.index(), at.type());
}

RawStream pack(const c10::Stream& stream) {
  auto data = stream.pack3();
  return {data.stream_id, static_cast<int32_t>(data.device_index), static_cast<int32_t>(data.device_type)};
}

c10::impl::VirtualGuardImpl guard(const RawStream& stream) { return {device(stream).type()}; }

// The twin's streams are numbers; 0 is every thread's first.
std::atomic<int64_t> streams{0};
thread_local int64_t current = 0;

template <typename Work>
int guarded(Work work) {
  try {
    work();
    return 0;
  } catch (const c10::Error& e) {
    error = e.what_without_backtrace();
  } catch (const std::exception& e) {
    error = e.what();
  } catch (...) {
    error = "unknown error";
  }
  return 1;
}

struct AnyEvent {
  int32_t kind;
  std::unique_ptr<c10::Event> event;  // null on the CPU
};

void require_same_kind(const AnyEvent& event, const RawStream& stream) {
  TORCH_CHECK(event.kind == stream.kind, "an event of device type ", event.kind, " meets a stream of type ", stream.kind);
}

}  // namespace

extern "C" {

const char* tidemill_stream_error() { return error.c_str(); }

// `stream` names a device; becomes a new stream on it.
int tidemill_stream_new(RawStream* stream) {
  return guarded([&] {
    if (on_cpu(*stream)) {
      stream->id = ++streams;
    } else {
      *stream = pack(guard(*stream).getNewStream(device(*stream)));
    }
  });
}

// `stream` names a device; becomes the calling thread's current stream on it.
int tidemill_stream_current(RawStream* stream) {
  return guarded([&] {
    if (on_cpu(*stream)) {
      stream->id = current;
    } else {
      *stream = pack(guard(*stream).getStream(device(*stream)));
    }
  });
}

// Makes `stream` the calling thread's current one; it becomes the former one.
int tidemill_stream_exchange(RawStream* stream) {
  return guarded([&] {
    if (on_cpu(*stream)) {
      std::swap(stream->id, current);
    } else {
      *stream = pack(guard(*stream).exchangeStream(unpack(*stream)));
    }
  });
}

// The tensor's memory is not given to others before the work that `stream` has now is done.
int tidemill_stream_keep(const RawStream* stream, const at::TensorBase* tensor) {
  return guarded([&] {
    if (!on_cpu(*stream) && tensor->defined() && tensor->has_storage()) {
      guard(*stream).recordDataPtrOnStream(tensor->storage().data_ptr(), unpack(*stream));
    }
  });
}

int tidemill_event_new(const RawStream* at, void** event) {
  return guarded([&] {
    auto made = std::make_unique<AnyEvent>(AnyEvent{at->kind, nullptr});
    if (!on_cpu(*at)) {
      made->event = std::make_unique<c10::Event>(device(*at).type());
    }
    *event = made.release();
  });
}

int tidemill_event_record(void* event, const RawStream* stream) {
  return guarded([&] {
    auto& any = *static_cast<AnyEvent*>(event);
    require_same_kind(any, *stream);
    if (any.event) {
      any.event->record(unpack(*stream));
    }
  });
}

// What `stream` is given from now on waits for the event; the calling thread does not.
int tidemill_event_block(const void* event, const RawStream* stream) {
  return guarded([&] {
    auto& any = *static_cast<const AnyEvent*>(event);
    require_same_kind(any, *stream);
    if (any.event) {
      any.event->block(unpack(*stream));
    }
  });
}

int tidemill_event_query(const void* event, bool* past) {
  return guarded([&] {
    auto& any = *static_cast<const AnyEvent*>(event);
    *past = !any.event || any.event->query();
  });
}

void tidemill_event_free(void* event) {
  guarded([&] { delete static_cast<AnyEvent*>(event); });
}
}
