/* What a card is: nothing here changes while it is used. */
#include "sim.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t r = sim_lock();
	if (r != NVML_SUCCESS)
		return r;
	*count = sim_header()->devices;
	sim_leave();
	return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) { return nvmlDeviceGetCount_v2(count); }

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	const struct sim_device *d;
	unsigned int n;
	nvmlReturn_t r = nvmlDeviceGetCount_v2(&n);
	if (r != NVML_SUCCESS)
		return r;
	if (!device || index >= n)
		return NVML_ERROR_INVALID_ARGUMENT;
	r = sim_enter(sim_handle(index, 0), SIM_F_HANDLE, &d);
	if (r != NVML_SUCCESS)
		return r;
	sim_leave();
	*device = sim_handle(index, 0);
	return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

static void bus_id(const struct sim_device *d, char *dst, size_t len, const char *format)
{
	snprintf(dst, len, format, 0u, d->bus & 0xffu, 0u);
}

#define BUS_ID "%08X:%02X:%02X.0"
#define BUS_ID_LEGACY "%04X:%02X:%02X.0"

static nvmlReturn_t handle_by(const char *what, int pci, nvmlDevice_t *device)
{
	unsigned int n;
	nvmlReturn_t r = nvmlDeviceGetCount_v2(&n);
	if (r != NVML_SUCCESS)
		return r;
	if (!what || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned int i = 0; i < n; i++) {
		const struct sim_device *d;
		r = sim_enter(sim_handle(i, 0), SIM_F_HANDLE, &d);
		if (r != NVML_SUCCESS)
			continue;
		int found;
		if (pci) {
			char id[32], legacy[32];
			bus_id(d, id, sizeof id, BUS_ID);
			bus_id(d, legacy, sizeof legacy, BUS_ID_LEGACY);
			found = !strcasecmp(what, id) || !strcasecmp(what, legacy);
		} else {
			found = !strncmp(what, d->uuid, sizeof d->uuid);
			for (unsigned int k = 0; k < sim_instances(d) && !found; k++)
				if (!strncmp(what, d->instance[k].uuid, sizeof d->instance[k].uuid)) {
					sim_leave();
					*device = sim_handle(i, k + 1);
					return NVML_SUCCESS;
				}
		}
		sim_leave();
		if (found) {
			*device = sim_handle(i, 0);
			return NVML_SUCCESS;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	return handle_by(uuid, 0, device);
}
EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
	return handle_by(id, 1, device);
}
EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device)
{
	return handle_by(id, 1, device);
}

#define STRING_GETTER(fn, figure, field)                                                    \
	EXPORT nvmlReturn_t fn(nvmlDevice_t device, char *dst, unsigned int length)         \
	{                                                                                   \
		const struct sim_device *d;                                                 \
		nvmlReturn_t r = sim_enter(device, figure, &d);                             \
		if (r != NVML_SUCCESS)                                                      \
			return r;                                                           \
		r = sim_string(dst, length, d->field, sizeof d->field);                     \
		sim_leave();                                                                \
		return r;                                                                   \
	}

STRING_GETTER(nvmlDeviceGetSerial, SIM_F_NAME, serial)

/* A getter of one number that doesn't change; `value` sees the device as d. */
#define NUMBER_GETTER(fn, type, figure, value)                         \
	EXPORT nvmlReturn_t fn(nvmlDevice_t device, type *out)         \
	{                                                              \
		const struct sim_device *d;                            \
		nvmlReturn_t r = sim_enter(device, figure, &d);        \
		if (r != NVML_SUCCESS)                                 \
			return r;                                      \
		if (out)                                               \
			*out = (type)sim_figure32(d, figure, (value)); \
		sim_leave();                                           \
		return out ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT; \
	}

NUMBER_GETTER(nvmlDeviceGetIndex, unsigned int, SIM_F_HANDLE, device->index)
NUMBER_GETTER(nvmlDeviceGetMinorNumber, unsigned int, SIM_F_MINOR, d->minor)
NUMBER_GETTER(nvmlDeviceGetArchitecture, unsigned int, SIM_F_ARCH, d->arch)
NUMBER_GETTER(nvmlDeviceGetMemoryBusWidth, unsigned int, SIM_F_MEMORY, d->bus_bits)
NUMBER_GETTER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, SIM_F_PCIE_LINK, d->pcie_gen)
NUMBER_GETTER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, SIM_F_PCIE_LINK, d->pcie_gen)
NUMBER_GETTER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned int, SIM_F_PCIE_LINK, d->pcie_gen)
NUMBER_GETTER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, SIM_F_PCIE_LINK, d->pcie_width)
NUMBER_GETTER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, SIM_F_PCIE_LINK, d->pcie_width)
/* MT/s of a lane: 8000 in generation 3, twice that a generation. */
NUMBER_GETTER(nvmlDeviceGetPcieSpeed, unsigned int, SIM_F_PCIE_LINK, 1000u << (d->pcie_gen & 7u))
NUMBER_GETTER(nvmlDeviceGetMultiGpuBoard, unsigned int, SIM_F_HANDLE, 0)
NUMBER_GETTER(nvmlDeviceGetBoardId, unsigned int, SIM_F_HANDLE, d->bus << 8)
NUMBER_GETTER(nvmlDeviceGetComputeMode, int, SIM_F_HANDLE, 0)
NUMBER_GETTER(nvmlDeviceGetPersistenceMode, int, SIM_F_HANDLE, 1)
NUMBER_GETTER(nvmlDeviceGetDisplayMode, int, SIM_F_HANDLE, 0)
NUMBER_GETTER(nvmlDeviceGetDisplayActive, int, SIM_F_HANDLE, 0)
NUMBER_GETTER(nvmlDeviceGetPowerManagementLimit, unsigned int, SIM_F_POWER, d->power_max * 1000)
NUMBER_GETTER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, SIM_F_POWER, d->power_max * 1000)
NUMBER_GETTER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, SIM_F_POWER, d->power_max * 1000)
NUMBER_GETTER(nvmlDeviceGetBrand, int, SIM_F_NAME,
	      d->caps & SIM_CAP_DATACENTER ? (d->arch < 7 ? NVML_BRAND_TESLA : NVML_BRAND_NVIDIA) : NVML_BRAND_TITAN)

EXPORT nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int *out)
{
	const struct sim_device *d;
	nvmlReturn_t r = sim_enter_whole(device, SIM_F_CORES, &d);
	if (r != NVML_SUCCESS)
		return r;
	if (out)
		*out = sim_figure32(d, SIM_F_CORES, d->cores);
	sim_leave();
	return out ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	const struct sim_device *d;
	nvmlReturn_t r = sim_enter(device, SIM_F_ARCH, &d);
	if (r != NVML_SUCCESS)
		return r;
	if (major && minor) {
		*major = (int)sim_figure32(d, SIM_F_ARCH, d->cc_major);
		*minor = (int)sim_figure32(d, SIM_F_ARCH, d->cc_minor);
	}
	sim_leave();
	return major && minor ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	const struct sim_device *d;
	nvmlReturn_t r = sim_enter(device, SIM_F_PCI, &d);
	if (r != NVML_SUCCESS)
		return r;
	if (pci) {
		memset(pci, 0, sizeof *pci);
		bus_id(d, pci->busId, sizeof pci->busId, BUS_ID);
		bus_id(d, pci->busIdLegacy, sizeof pci->busIdLegacy, BUS_ID_LEGACY);
		pci->bus = d->bus & 0xffu;
		pci->pciDeviceId = d->pci_id;
		pci->pciSubSystemId = d->pci_subsystem;
	}
	sim_leave();
	return pci ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}
EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	return nvmlDeviceGetPciInfo_v3(device, pci);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, int which, unsigned int *celsius)
{
	const struct sim_device *d;
	nvmlReturn_t r = sim_enter(device, SIM_F_TEMPERATURE, &d);
	if (r != NVML_SUCCESS)
		return r;
	if (!celsius)
		r = NVML_ERROR_INVALID_ARGUMENT;
	else if (which == NVML_TEMPERATURE_THRESHOLD_SHUTDOWN)
		*celsius = d->temp_shutdown;
	else if (which == NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
		*celsius = d->temp_slowdown;
	else
		r = NVML_ERROR_NOT_SUPPORTED;
	sim_leave();
	return r;
}

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, int *current, int *pending)
{
	const struct sim_device *d;
	nvmlReturn_t r = sim_enter(device, SIM_F_HANDLE, &d);
	if (r != NVML_SUCCESS)
		return r;
	if (!(d->caps & SIM_CAP_ECC))
		r = NVML_ERROR_NOT_SUPPORTED;
	else if (!current || !pending)
		r = NVML_ERROR_INVALID_ARGUMENT;
	else
		*current = *pending = 1;
	sim_leave();
	return r;
}
