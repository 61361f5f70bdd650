/* What a machine and its cards are: nothing here changes while they are used. */
#include "sim.h"

#include <stdio.h>

EXPORT nvmlReturn_t nvmlInit_v2(void) { return sim_open(); }
EXPORT nvmlReturn_t nvmlShutdown(void) { return sim_close(); }

EXPORT const char *nvmlErrorString(nvmlReturn_t r)
{
	static const char *const texts[] = {
		[NVML_SUCCESS] = "Success",
		[NVML_ERROR_UNINITIALIZED] = "Uninitialized",
		[NVML_ERROR_INVALID_ARGUMENT] = "Invalid Argument",
		[NVML_ERROR_NOT_SUPPORTED] = "Not Supported",
		[NVML_ERROR_NO_PERMISSION] = "Insufficient Permissions",
		[NVML_ERROR_NOT_FOUND] = "Not Found",
		[NVML_ERROR_INSUFFICIENT_SIZE] = "Insufficient Size",
		[NVML_ERROR_DRIVER_NOT_LOADED] = "Driver Not Loaded",
		[NVML_ERROR_TIMEOUT] = "Timeout",
		[NVML_ERROR_GPU_IS_LOST] = "GPU is lost",
		[NVML_ERROR_LIB_RM_VERSION_MISMATCH] = "RM has detected an NVML/RM version mismatch.",
		[NVML_ERROR_ARGUMENT_VERSION_MISMATCH] = "Argument Version Mismatch",
	};
	const char *text = r < sizeof texts / sizeof *texts ? texts[r] : NULL;
	return text ? text : "Unknown Error";
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	return sim_string(version, length, sim_header->driver, sizeof sim_header->driver);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
	*version = sim_header->cuda;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	*count = sim_header->devices;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	if (index >= SIM_MAX_DEVICES)
		return NVML_ERROR_INVALID_ARGUMENT;
	ENTER(sim_handle(index, 0), SIM_F_HANDLE, DEVICE);
	*device = sim_handle(index, 0);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *dst, unsigned int length)
{
	ENTER(device, SIM_F_NAME, ANY);
	char name[sizeof d->name + 8 + sizeof e.in->profile];
	int n = snprintf(name, sizeof name, "%.*s", (int)sizeof d->name, d->name);
	if (e.in)
		snprintf(name + n, sizeof name - n, " MIG %.*s", (int)sizeof e.in->profile, e.in->profile);
	return sim_string(dst, length, name, sizeof name);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *dst, unsigned int length)
{
	ENTER(device, SIM_F_UUID, ANY);
	return sim_string(dst, length, e.in ? e.in->uuid : d->uuid, sizeof d->uuid);
}

/* A getter of one number that doesn't change. */
#define NUMBER_GETTER(fn, figure, scope, value)                               \
	EXPORT nvmlReturn_t fn(nvmlDevice_t device, unsigned int *out)        \
	{                                                                     \
		ENTER(device, figure, scope);                                 \
		*out = sim_figure32(d, figure, value);                        \
		return NVML_SUCCESS;                                          \
	}

NUMBER_GETTER(nvmlDeviceGetMinorNumber, SIM_F_MINOR, DEVICE, d->minor)
NUMBER_GETTER(nvmlDeviceGetMaxPcieLinkGeneration, SIM_F_PCIE_LINK, DEVICE, d->pcie_gen)
NUMBER_GETTER(nvmlDeviceGetMaxPcieLinkWidth, SIM_F_PCIE_LINK, DEVICE, d->pcie_width)

/* Of a GPU in MIG mode its instances are asked (nvml.h). */
EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode)
{
	ENTER(device, SIM_F_NAME, ANY);
	if (d->mig && !e.in)
		return NVML_ERROR_NOT_SUPPORTED;
	*mode = d->compute_mode;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
	ENTER(device, SIM_F_NAME, DEVICE);
	(void)d;
	*mode = NVML_FEATURE_ENABLED;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	ENTER(device, SIM_F_ARCH, DEVICE);
	*major = (int)sim_figure32(d, SIM_F_ARCH, d->ccmajor);
	*minor = (int)sim_figure32(d, SIM_F_ARCH, d->ccminor);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node)
{
	ENTER(device, SIM_F_NAME, DEVICE);
	NEEDS(SIM_CAP_NUMA);
	*node = 1;
	return NVML_SUCCESS;
}

/* MIG: a card cut into instances, each with a handle of its own. */

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
	ENTER(device, SIM_F_MIG, DEVICE);
	NEEDS(SIM_CAP_MIG);
	*current = *pending = d->mig;
	return NVML_SUCCESS;
}

NUMBER_GETTER(nvmlDeviceGetMaxMigDeviceCount, SIM_F_MIG, DEVICE, d->caps & SIM_CAP_MIG ? 7 : 0)

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *out)
{
	ENTER(device, SIM_F_MIG, DEVICE);
	NEEDS(SIM_CAP_MIG);
	if (index >= d->instances)
		return NVML_ERROR_NOT_FOUND;
	*out = sim_handle(device.handle->index, index + 1);
	return NVML_SUCCESS;
}

/* A getter of one of an instance's numbers. */
#define ID_GETTER(fn, value)                                          \
	EXPORT nvmlReturn_t fn(nvmlDevice_t device, unsigned int *id) \
	{                                                             \
		ENTER(device, SIM_F_MIG, ANY);                        \
		if (!e.in)                                            \
			return NVML_ERROR_INVALID_ARGUMENT;           \
		*id = value;                                          \
		return NVML_SUCCESS;                                  \
	}

ID_GETTER(nvmlDeviceGetGpuInstanceId, e.in->gpuinstance)
ID_GETTER(nvmlDeviceGetComputeInstanceId, 0)

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *a)
{
	ENTER(device, SIM_F_MIG, ANY);
	if (!e.in) /* nvml.h: instances alone have them */
		return NVML_ERROR_NOT_SUPPORTED;
	*a = (nvmlDeviceAttributes_t){
		.multiprocessorCount = sim_figure32(d, SIM_F_MIG, e.in->sms),
		.memorySizeMB = sim_figure(d, SIM_F_MIG, e.in->mem_total, ~0ULL),
		.gpuInstanceSliceCount = e.in->slices,
		.computeInstanceSliceCount = e.in->slices,
	};
	return NVML_SUCCESS;
}
