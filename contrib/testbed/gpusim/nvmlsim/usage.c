/* What a card does at this moment. */
#include "sim.h"

#include <stdlib.h>

/* What the driver keeps of a card: of instances nothing. Drivers before release 510 (CUDA 11.6) don't speak of it. */
static double kept(const struct sim_entry *e)
{
	return e->in || sim_header->cuda < 11060 ? 0 : e->d->mem_reserved;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *m)
{
	ENTER(device, SIM_F_MEMORY, ANY);
	if (sim_header->cuda < 11060)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	if (m->version != nvmlMemory_v2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	LOOK(l);
	/* Where the memory in use is made huge, it is more than there is. */
	int none = d->fault[SIM_F_MEMORY].mode == SIM_FAULT_ZERO;
	m->reserved = none ? 0 : kept(&e) * MIB;
	m->total = none ? 0 : (e.in ? e.in->mem_total : d->mem_total) * MIB + m->reserved;
	m->used = sim_figure(d, SIM_F_MEMORY, (e.in ? l.inst_mem[device.handle->instance - 1] : l.y.mem_mib) * MIB, ~0ULL);
	m->free = m->total > m->used ? m->total - m->reserved - m->used : 0;
	return NVML_SUCCESS;
}

/* The first version counts what the driver keeps as used. */
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *m)
{
	ENTER(device, SIM_F_MEMORY, ANY);
	LOOK(l);
	double used = (e.in ? l.inst_mem[device.handle->instance - 1] : l.y.mem_mib) + kept(&e);
	m->total = d->fault[SIM_F_MEMORY].mode == SIM_FAULT_ZERO ? 0 :
		((e.in ? e.in->mem_total : d->mem_total) + kept(&e)) * MIB;
	m->used = sim_figure(d, SIM_F_MEMORY, used * MIB, ~0ULL);
	m->free = m->total > m->used ? m->total - m->used : 0;
	return NVML_SUCCESS;
}

/*
 * The memory controller's share of the time: pengfei-zou/PowerBound measured
 * 54-62 % on a TITAN Xp whose kernels run 96-99 % of the time.
 */
#define CONTROLLER 0.6

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *u)
{
	ENTER(device, SIM_F_UTILIZATION, WHOLE);
	LOOK(l);
	u->gpu = sim_figure32(d, SIM_F_UTILIZATION, l.y.gpu * 100);
	u->memory = sim_figure32(d, SIM_F_UTILIZATION, l.y.gpu * 100 * CONTROLLER);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *mw)
{
	ENTER(device, SIM_F_POWER, DEVICE);
	LOOK(l);
	*mw = sim_figure32(d, SIM_F_POWER, l.y.power_w * 1000);
	return NVML_SUCCESS;
}

/* KB/s, as NVML has it; what comes in from the host is taken for two thirds of the traffic. */
EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter, unsigned int *value)
{
	ENTER(device, SIM_F_PCIE_THROUGHPUT, DEVICE);
	LOOK(l);
	double part = counter == NVML_PCIE_UTIL_RX_BYTES ? 2.0 / 3 : 1.0 / 3;
	*value = sim_figure32(d, SIM_F_PCIE_THROUGHPUT, l.y.pcie_mbps * 1000 * part);
	return NVML_SUCCESS;
}

/* GPM: figures between two samples of running sums. */
struct nvmlGpmSample_st {
	nvmlDevice_t of;
	double t, busy_s, core_s, pcie_mb;
};

EXPORT nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *s)
{
	ENTER(device, SIM_F_GPM, DEVICE);
	s->isSupportedDevice = !!(d->caps & SIM_CAP_GPM);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *s)
{
	s->handle = calloc(1, sizeof *s->handle);
	return s->handle ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

EXPORT nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t s)
{
	free(s.handle);
	return NVML_SUCCESS;
}

static nvmlReturn_t take(const struct sim_device_rec *d, nvmlDevice_t of, nvmlGpmSample_t s)
{
	NEEDS(SIM_CAP_GPM);
	LOOK(l);
	unsigned int k = of.handle->instance;
	*s.handle = (struct nvmlGpmSample_st){of, l.t, l.y.busy_s, l.y.core_s, l.y.pcie_mb};
	if (k) {
		/* In fractions of the instance. */
		double part = (double)d->instance[k - 1].sms / d->sms;
		*s.handle = (struct nvmlGpmSample_st){of, l.t, l.y.inst_busy_s[k - 1] / part, l.y.inst_core_s[k - 1] / part, 0};
	}
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t s)
{
	ENTER(device, SIM_F_GPM, ANY);
	return take(d, device, s);
}

EXPORT nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gpu_instance, nvmlGpmSample_t s)
{
	ENTER(device, SIM_F_GPM, DEVICE);
	for (unsigned int k = 0; k < d->instances; k++)
		if (d->instance[k].gpuinstance == gpu_instance)
			return take(d, sim_handle(device.handle->index, k + 1), s);
	return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *g)
{
	const struct nvmlGpmSample_st *a = g->sample1.handle, *b = g->sample2.handle;
	double dt = b->t - a->t;
	if (a->of.handle != b->of.handle || !(dt > 0))
		return NVML_ERROR_INVALID_ARGUMENT;
	if (g->version != 1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	ENTER(a->of, SIM_F_GPM, ANY);
	for (unsigned int i = 0; i < g->numMetrics; i++) {
		nvmlGpmMetric_t *m = &g->metrics[i];
		double mib = (b->pcie_mb - a->pcie_mb) / dt * 1e6 / MIB;
		m->nvmlReturn = NVML_SUCCESS;
		switch (m->metricId) {
		case NVML_GPM_METRIC_GRAPHICS_UTIL: m->value = (b->busy_s - a->busy_s) / dt * 100; break;
		case NVML_GPM_METRIC_SM_UTIL: m->value = (b->core_s - a->core_s) / dt * 100; break;
		case NVML_GPM_METRIC_PCIE_TX_PER_SEC: m->value = mib / 3; break;
		case NVML_GPM_METRIC_PCIE_RX_PER_SEC: m->value = mib * 2 / 3; break;
		default: m->nvmlReturn = NVML_ERROR_NOT_SUPPORTED; continue;
		}
		if (d->fault[SIM_F_GPM].mode)
			m->value = (double)sim_figure(d, SIM_F_GPM, m->value, ~0ULL >> 1);
	}
	return NVML_SUCCESS;
}
