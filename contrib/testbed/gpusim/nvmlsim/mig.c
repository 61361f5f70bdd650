/* MIG: a card cut into instances, each with a handle of its own. */
#include "sim.h"

#include <stdio.h>
#include <string.h>

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *dst, unsigned int length)
{
	const struct sim_device *d;
	const struct sim_instance *in;
	char name[sizeof d->name + 8 + sizeof in->profile];
	nvmlReturn_t r = sim_enter_any(device, SIM_F_NAME, &d, &in);
	if (r != NVML_SUCCESS)
		return r;
	snprintf(name, sizeof name, "%.*s", (int)sizeof d->name, d->name);
	if (in)
		snprintf(name + strlen(name), sizeof name - strlen(name), " MIG %.*s", (int)sizeof in->profile, in->profile);
	r = sim_string(dst, length, name, sizeof name);
	sim_leave();
	return r;
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *dst, unsigned int length)
{
	const struct sim_device *d;
	const struct sim_instance *in;
	nvmlReturn_t r = sim_enter_any(device, SIM_F_UUID, &d, &in);
	if (r != NVML_SUCCESS)
		return r;
	r = in ? sim_string(dst, length, in->uuid, sizeof in->uuid) : sim_string(dst, length, d->uuid, sizeof d->uuid);
	sim_leave();
	return r;
}

#ifndef NVMLSIM_OLD /* MIG came with Ampere's drivers */

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
	const struct sim_device *d;
	nvmlReturn_t r = sim_enter(device, SIM_F_MIG, &d);
	if (r != NVML_SUCCESS)
		return r;
	if (!(d->caps & SIM_CAP_MIG))
		r = NVML_ERROR_NOT_SUPPORTED;
	else if (!current || !pending)
		r = NVML_ERROR_INVALID_ARGUMENT;
	else
		*current = *pending = d->mig;
	sim_leave();
	return r;
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is)
{
	const struct sim_device *d;
	const struct sim_instance *in;
	nvmlReturn_t r = sim_enter_any(device, SIM_F_MIG, &d, &in);
	if (r != NVML_SUCCESS)
		return r;
	sim_leave();
	if (!is)
		return NVML_ERROR_INVALID_ARGUMENT;
	*is = in != NULL;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
	const struct sim_device *d;
	nvmlReturn_t r = sim_enter(device, SIM_F_MIG, &d);
	if (r != NVML_SUCCESS)
		return r;
	if (count)
		*count = d->caps & SIM_CAP_MIG ? sim_figure32(d, SIM_F_MIG, 7) : 0;
	sim_leave();
	return count ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *out)
{
	const struct sim_device *d;
	nvmlReturn_t r = sim_enter(device, SIM_F_MIG, &d);
	if (r != NVML_SUCCESS)
		return r;
	if (!(d->caps & SIM_CAP_MIG))
		r = NVML_ERROR_NOT_SUPPORTED;
	else if (!out)
		r = NVML_ERROR_INVALID_ARGUMENT;
	else if (!d->mig || index >= sim_instances(d))
		r = NVML_ERROR_NOT_FOUND;
	else
		*out = sim_handle(device->index, index + 1);
	sim_leave();
	return r;
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *out)
{
	const struct sim_device *d;
	const struct sim_instance *in;
	nvmlReturn_t r = sim_enter_any(device, SIM_F_MIG, &d, &in);
	if (r != NVML_SUCCESS)
		return r;
	sim_leave();
	if (!in || !out)
		return NVML_ERROR_INVALID_ARGUMENT;
	*out = sim_handle(device->index, 0);
	return NVML_SUCCESS;
}

/* A getter of one of an instance's numbers. */
#define ID_GETTER(fn, field)                                                     \
	EXPORT nvmlReturn_t fn(nvmlDevice_t device, unsigned int *id)            \
	{                                                                        \
		const struct sim_device *d;                                      \
		const struct sim_instance *in;                                   \
		nvmlReturn_t r = sim_enter_any(device, SIM_F_MIG, &d, &in);      \
		if (r != NVML_SUCCESS)                                           \
			return r;                                                \
		if (in && id)                                                    \
			*id = in->field;                                         \
		sim_leave();                                                     \
		return in && id ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;    \
	}

ID_GETTER(nvmlDeviceGetGpuInstanceId, gpu_instance)
ID_GETTER(nvmlDeviceGetComputeInstanceId, compute_instance)

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *a)
{
	const struct sim_device *d;
	const struct sim_instance *in;
	nvmlReturn_t r = sim_enter_any(device, SIM_F_MIG, &d, &in);
	if (r != NVML_SUCCESS)
		return r;
	if (!(d->caps & SIM_CAP_MIG))
		r = NVML_ERROR_NOT_SUPPORTED;
	else if (!a)
		r = NVML_ERROR_INVALID_ARGUMENT;
	else {
		memset(a, 0, sizeof *a);
		a->multiprocessorCount = sim_figure32(d, SIM_F_MIG, in ? in->sms : d->sms);
		a->memorySizeMB = sim_figure(d, SIM_F_MIG, in ? in->mem_total : d->mem_total, ~0ULL);
		if (in)
			a->gpuInstanceSliceCount = a->computeInstanceSliceCount = in->slices;
	}
	sim_leave();
	return r;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *a)
{
	return nvmlDeviceGetAttributes_v2(device, a);
}

#endif
