#pragma once

/// The one macro header: code shared by host and device.
#ifdef __CUDACC__
#define KINORA_HOST_DEVICE __host__ __device__
#else
#define KINORA_HOST_DEVICE
#endif
