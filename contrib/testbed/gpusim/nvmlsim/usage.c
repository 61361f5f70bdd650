/* What a card does at this moment. */
#include "sim.h"

#include <stdlib.h>

/* Enters and looks; after NVML_SUCCESS the caller leaves. */
static nvmlReturn_t look(nvmlDevice_t h, int figure, const struct sim_device **d, struct live *l)
{
	nvmlReturn_t r = sim_enter(h, figure, d);
	if (r != NVML_SUCCESS)
		return r;
	r = sim_look(*d, l);
	if (r != NVML_SUCCESS)
		sim_leave();
	return r;
}

/* Where the memory in use is made huge, it is more than there is. */
static unsigned long long total(const struct sim_device *d, double mib)
{
	return d->fault[SIM_F_MEMORY].mode == SIM_FAULT_ZERO ? 0 : (unsigned long long)(mib * MIB);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *m)
{
	const struct sim_device *d;
	const struct sim_instance *in;
	struct live l;
	if (!m)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t r = sim_enter_any(device, SIM_F_MEMORY, &d, &in);
	if (r != NVML_SUCCESS)
		return r;
	r = sim_look(d, &l);
	if (r != NVML_SUCCESS) {
		sim_leave();
		return r;
	}
	m->total = total(d, in ? in->mem_total : d->mem_total);
	m->used = sim_figure(d, SIM_F_MEMORY, (in ? l.inst_mem[device->instance - 1] : l.mem) * MIB, ~0ULL);
	m->free = m->total > m->used ? m->total - m->used : 0;
	sim_leave();
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *m)
{
	const struct sim_device *d;
	struct live l;
	if (!m)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (m->version != VERSION_OF(nvmlMemory_v2_t, 2))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	nvmlReturn_t r = look(device, SIM_F_MEMORY, &d, &l);
	if (r != NVML_SUCCESS)
		return r;
	m->total = total(d, d->mem_total);
	m->reserved = sim_figure(d, SIM_F_MEMORY, d->mem_reserved * MIB, ~0ULL);
	m->used = sim_figure(d, SIM_F_MEMORY, (l.mem - d->mem_reserved) * MIB, ~0ULL);
	m->free = m->total > m->used + m->reserved ? m->total - m->used - m->reserved : 0;
	sim_leave();
	return NVML_SUCCESS;
}

/*
 * The memory controller's share of the time: pengfei-zou/PowerBound measured
 * 54-62 % on a TITAN Xp whose kernels run 96-99 % of the time.
 */
#define CONTROLLER 0.6

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *u)
{
	const struct sim_device *d;
	struct live l;
	if (!u)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t r = look(device, SIM_F_UTILIZATION, &d, &l);
	if (r != NVML_SUCCESS)
		return r;
	if (d->mig) {
		sim_leave();
		return NVML_ERROR_NOT_SUPPORTED;
	}
	u->gpu = sim_figure32(d, SIM_F_UTILIZATION, l.gpu * 100);
	u->memory = sim_figure32(d, SIM_F_UTILIZATION, l.gpu * 100 * CONTROLLER);
	sim_leave();
	return NVML_SUCCESS;
}

/* A getter of one number of this moment; `value` sees d and l. */
#define FIGURE_GETTER(fn, figure, value)                                 \
	EXPORT nvmlReturn_t fn(nvmlDevice_t device, unsigned int *out)   \
	{                                                                \
		const struct sim_device *d;                              \
		struct live l;                                           \
		if (!out)                                                \
			return NVML_ERROR_INVALID_ARGUMENT;              \
		nvmlReturn_t r = look(device, figure, &d, &l);           \
		if (r != NVML_SUCCESS)                                   \
			return r;                                        \
		*out = sim_figure32(d, figure, (value));                 \
		sim_leave();                                             \
		return NVML_SUCCESS;                                     \
	}

FIGURE_GETTER(nvmlDeviceGetPowerUsage, SIM_F_POWER, l.power * 1000)
FIGURE_GETTER(nvmlDeviceGetPerformanceState, SIM_F_CLOCKS, l.count ? 2 : 8)
FIGURE_GETTER(nvmlDeviceGetPowerState, SIM_F_CLOCKS, l.count ? 2 : 8)

static double celsius(const struct sim_device *d, const struct live *l)
{
	return d->temp_idle + (d->temp_max - d->temp_idle) * most(0, l->power - d->power_idle) / (d->power_max - d->power_idle);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned int *out)
{
	const struct sim_device *d;
	struct live l;
	if (!out || sensor != NVML_TEMPERATURE_GPU)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t r = look(device, SIM_F_TEMPERATURE, &d, &l);
	if (r != NVML_SUCCESS)
		return r;
	*out = sim_figure32(d, SIM_F_TEMPERATURE, celsius(d, &l));
	sim_leave();
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *mj)
{
	const struct sim_device *d;
	struct live l;
	if (!mj)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t r = look(device, SIM_F_ENERGY, &d, &l);
	if (r != NVML_SUCCESS)
		return r;
	if (d->caps & SIM_CAP_ENERGY)
		*mj = sim_figure(d, SIM_F_ENERGY, l.energy_j * 1000, ~0ULL >> 1);
	else
		r = NVML_ERROR_NOT_SUPPORTED;
	sim_leave();
	return r;
}

/* KB/s, as NVML has it; what comes in from the host is taken for two thirds of the traffic. */
EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, int counter, unsigned int *value)
{
	const struct sim_device *d;
	struct live l;
	if (!value || (counter != NVML_PCIE_UTIL_TX && counter != NVML_PCIE_UTIL_RX))
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t r = look(device, SIM_F_PCIE_THROUGHPUT, &d, &l);
	if (r != NVML_SUCCESS)
		return r;
	double part = counter == NVML_PCIE_UTIL_RX ? 2.0 / 3 : 1.0 / 3;
	*value = sim_figure32(d, SIM_F_PCIE_THROUGHPUT, l.pcie * 1000 * part);
	sim_leave();
	return NVML_SUCCESS;
}

static nvmlReturn_t clock_mhz(nvmlDevice_t device, int which, int max, unsigned int *mhz)
{
	const struct sim_device *d;
	struct live l;
	if (!mhz || which < NVML_CLOCK_GRAPHICS || which > NVML_CLOCK_VIDEO)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t r = look(device, SIM_F_CLOCKS, &d, &l);
	if (r != NVML_SUCCESS)
		return r;
	int busy = max || l.count;
	double v = which == NVML_CLOCK_MEM ? (busy ? d->clock_mem : d->clock_mem_idle) : (busy ? d->clock_sm : d->clock_sm_idle);
	*mhz = sim_figure32(d, SIM_F_CLOCKS, v);
	sim_leave();
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int which, unsigned int *mhz)
{
	return clock_mhz(device, which, 0, mhz);
}
EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, int which, unsigned int *mhz)
{
	return clock_mhz(device, which, 1, mhz);
}

/*
 * The driver's buffer: a sample each 1/6 s (nvml.h has the sampling period of
 * utilisation between 1/6 s and 1 s), of the GPU's own time, and 120 of them (an
 * assumption). Each is the mean over its period.
 */
#define SAMPLE_S (1.0 / 6)
#define SAMPLES 120

static double mean_gpu(const struct sim_device *d, const struct live *l, double from, double to)
{
	const struct sim_dyn *y = &d->dyn[d->cur];
	double sum = 0, end = to;
	for (uint32_t k = 0; k < SIM_CHANGES && k < y->changes && end > from; k++) {
		const struct sim_change *c = &y->change[(y->changes - 1 - k) % SIM_CHANGES];
		double begin = most(c->t, from);
		if (begin < end) {
			sum += (end - begin) * c->gpu;
			end = begin;
		}
	}
	/* Who died since somebody last looked isn't among the changes. */
	double looked = most(from, sim_seconds(d->looked_ns));
	if (l->died && looked < to)
		sum -= (to - looked) * most(0, y->gpu - l->gpu);
	return most(0, sum) / (to - from);
}

/* A GPU second on the clock of the wall, in microseconds; wall is what it shows at l->t. */
static unsigned long long stamp(const struct live *l, unsigned long long wall, double t)
{
	return wall - (unsigned long long)((l->t - t) / sim_scale() * 1e6);
}

EXPORT nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, int type, unsigned long long last_seen, int *value_type,
					 unsigned int *count, nvmlSample_t *samples)
{
	const struct sim_device *d;
	struct live l;
	if (!value_type || !count)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t r = look(device, SIM_F_SAMPLES, &d, &l);
	if (r != NVML_SUCCESS)
		return r;
	if (type < NVML_TOTAL_POWER_SAMPLES || type > NVML_MEMORY_UTILIZATION_SAMPLES || (d->mig && type != NVML_TOTAL_POWER_SAMPLES)) {
		sim_leave();
		return NVML_ERROR_NOT_SUPPORTED;
	}
	*value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
	unsigned int n = 0, room = samples ? *count : SAMPLES;
	unsigned long long last = (unsigned long long)(l.t / SAMPLE_S), wall = sim_wall_us();
	for (unsigned long long k = last > SAMPLES ? last - SAMPLES + 1 : 1; samples && k <= last; k++) {
		unsigned long long at = stamp(&l, wall, k * SAMPLE_S);
		if (at <= last_seen)
			continue;
		double v = mean_gpu(d, &l, (k - 1) * SAMPLE_S, k * SAMPLE_S);
		if (type == NVML_TOTAL_POWER_SAMPLES)
			v = (l.count || v > 0 ? d->power_active + (d->power_max - d->power_active) * v : d->power_idle) * 1000;
		else
			v *= type == NVML_GPU_UTILIZATION_SAMPLES ? 100 : 100 * CONTROLLER;
		if (n < room) {
			samples[n].timeStamp = sim_figure(d, SIM_F_SAMPLES, (double)at, ~0ULL >> 1);
			samples[n].sampleValue.ullVal = 0;
			samples[n].sampleValue.uiVal = sim_figure32(d, SIM_F_SAMPLES, v);
		}
		n++;
	}
	if (!samples)
		*count = SAMPLES;
	else if (n == 0)
		r = NVML_ERROR_NOT_FOUND;
	else if (n > room)
		r = NVML_ERROR_INSUFFICIENT_SIZE;
	else
		*count = n;
	sim_leave();
	return r;
}

#ifndef NVMLSIM_OLD
EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *t)
{
	unsigned int v;
	if (!t)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (t->version != VERSION_OF(nvmlTemperature_t, 1))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	nvmlReturn_t r = nvmlDeviceGetTemperature(device, t->sensorType, &v);
	if (r == NVML_SUCCESS)
		t->temperature = (int)v;
	return r;
}

/* GPM: figures between two samples of running sums. */
struct gpm_sample {
	int taken;
	unsigned int index, instance;
	double t, busy_s, core_s, pcie_mb;
};

EXPORT nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *s)
{
	const struct sim_device *d;
	if (!s)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t r = sim_enter(device, SIM_F_GPM, &d);
	if (r != NVML_SUCCESS)
		return r;
	s->isSupportedDevice = !!(d->caps & SIM_CAP_GPM);
	sim_leave();
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *s)
{
	if (!s)
		return NVML_ERROR_INVALID_ARGUMENT;
	*s = calloc(1, sizeof **s);
	return *s ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

EXPORT nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t s)
{
	free(s);
	return NVML_SUCCESS;
}

/* instance + 1 = that MIG instance, 0 = the whole card */
static nvmlReturn_t gpm_take(const struct sim_device *d, unsigned int index, unsigned int instance, nvmlGpmSample_t s)
{
	struct live l;
	if (!(d->caps & SIM_CAP_GPM))
		return NVML_ERROR_NOT_SUPPORTED;
	nvmlReturn_t r = sim_look(d, &l);
	if (r != NVML_SUCCESS)
		return r;
	s->taken = 1;
	s->index = index;
	s->instance = instance;
	s->t = l.t;
	s->busy_s = l.busy_s;
	s->core_s = l.core_s;
	s->pcie_mb = l.pcie_mb;
	if (instance) {
		/* In fractions of the instance. */
		double part = (double)d->instance[instance - 1].sms / d->sms;
		s->busy_s = l.inst_busy_s[instance - 1] / part;
		s->core_s = l.inst_core_s[instance - 1] / part;
		s->pcie_mb = 0;
	}
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t s)
{
	const struct sim_device *d;
	const struct sim_instance *in;
	if (!s)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t r = sim_enter_any(device, SIM_F_GPM, &d, &in);
	if (r != NVML_SUCCESS)
		return r;
	r = gpm_take(d, device->index, device->instance, s);
	sim_leave();
	return r;
}

EXPORT nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gpu_instance, nvmlGpmSample_t s)
{
	const struct sim_device *d;
	if (!s)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t r = sim_enter(device, SIM_F_GPM, &d);
	if (r != NVML_SUCCESS)
		return r;
	unsigned int n = sim_instances(d), k = 0;
	while (k < n && d->instance[k].gpu_instance != gpu_instance)
		k++;
	r = k < n ? gpm_take(d, device->index, k + 1, s) : NVML_ERROR_NOT_FOUND;
	sim_leave();
	return r;
}

EXPORT nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *g)
{
	const struct sim_device *d;
	if (!g || !g->sample1 || !g->sample2 || !g->sample1->taken || !g->sample2->taken ||
	    g->sample1->index != g->sample2->index || g->sample1->instance != g->sample2->instance)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (g->version != 1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	const struct gpm_sample *a = g->sample1, *b = g->sample2;
	double dt = b->t - a->t;
	if (!(dt > 0))
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t r = sim_enter(sim_handle(a->index, 0), SIM_F_GPM, &d);
	if (r != NVML_SUCCESS)
		return r;
	for (unsigned int i = 0; i < g->numMetrics; i++) {
		nvmlGpmMetric_t *m = &g->metrics[i];
		double gpu = (b->busy_s - a->busy_s) / dt * 100, core = (b->core_s - a->core_s) / dt * 100;
		double mib = (b->pcie_mb - a->pcie_mb) / dt * 1e6 / MIB;
		m->nvmlReturn = NVML_SUCCESS;
		switch (m->metricId) {
		case NVML_GPM_METRIC_GRAPHICS_UTIL: m->value = gpu; break;
		case NVML_GPM_METRIC_SM_UTIL: m->value = core; break;
		/* Half of the warps of a busy SM: an assumption. */
		case NVML_GPM_METRIC_SM_OCCUPANCY: m->value = core / 2; break;
		case NVML_GPM_METRIC_DRAM_BW_UTIL: m->value = gpu * CONTROLLER; break;
		case NVML_GPM_METRIC_PCIE_TX_PER_SEC: m->value = mib / 3; break;
		case NVML_GPM_METRIC_PCIE_RX_PER_SEC: m->value = mib * 2 / 3; break;
		default: m->nvmlReturn = NVML_ERROR_NOT_SUPPORTED; continue;
		}
		if (d->fault[SIM_F_GPM].mode)
			m->value = (double)sim_figure(d, SIM_F_GPM, m->value, ~0ULL >> 1);
	}
	sim_leave();
	return NVML_SUCCESS;
}
#endif
