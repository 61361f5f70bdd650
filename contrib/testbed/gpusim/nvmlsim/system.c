#include "sim.h"

#include <stdio.h>

EXPORT nvmlReturn_t nvmlInit_v2(void) { return sim_open(); }
EXPORT nvmlReturn_t nvmlInit(void) { return sim_open(); }
EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	(void)flags;
	return sim_open();
}
EXPORT nvmlReturn_t nvmlShutdown(void) { return sim_close(); }

EXPORT const char *nvmlErrorString(nvmlReturn_t r)
{
	switch (r) {
	case NVML_SUCCESS: return "Success";
	case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
	case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
	case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
	case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
	case NVML_ERROR_NOT_FOUND: return "Not Found";
	case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
	case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
	case NVML_ERROR_TIMEOUT: return "Timeout";
	case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
	case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "RM has detected an NVML/RM version mismatch.";
	case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument Version Mismatch";
	}
	return "Unknown Error";
}

static nvmlReturn_t header_string(char *dst, unsigned int len, const char *s, size_t max)
{
	nvmlReturn_t r = sim_lock();
	if (r != NVML_SUCCESS)
		return r;
	r = sim_string(dst, len, s ? s : sim_header()->driver, s ? max : sizeof sim_header()->driver);
	sim_leave();
	return r;
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	return header_string(version, length, NULL, 0);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	static const char v[] = "12.535.183.01";
	return header_string(version, length, v, sizeof v);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
	if (!version)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t r = sim_lock();
	if (r != NVML_SUCCESS)
		return r;
	*version = sim_header()->cuda;
	sim_leave();
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	return nvmlSystemGetCudaDriverVersion(version);
}

EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
	char path[32], buf[256];
	if (!name || !length)
		return NVML_ERROR_INVALID_ARGUMENT;
	snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
	FILE *f = fopen(path, "re");
	if (!f)
		return NVML_ERROR_NOT_FOUND;
	size_t n = fread(buf, 1, sizeof buf - 1, f);
	fclose(f);
	buf[n] = 0;
	/* NVML cuts the name to the buffer. */
	snprintf(name, length, "%s", buf);
	return NVML_SUCCESS;
}
