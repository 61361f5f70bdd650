/* Who is on a card. */
#include "sim.h"

#include <string.h>

/*
 * Whether NVML shows process k in the list of compute processes. Before Volta
 * the clients of an MPS server are invisible: the server holds everything.
 */
static int shown(const struct sim_device *d, const struct live *l, unsigned int k)
{
	return l->p[k].slot->kind != SIM_CLIENT || (d->caps & SIM_CAP_MPS_LIST);
}

/* Memory and busy time NVML charges to process k. */
static void charge(const struct sim_device *d, const struct live *l, unsigned int k, double *mem, double *busy)
{
	*mem = l->p[k].now->mem;
	*busy = l->p[k].busy;
	if (l->p[k].slot->kind != SIM_SERVER || (d->caps & SIM_CAP_MPS_LIST))
		return;
	for (unsigned int i = 0; i < l->count; i++)
		if (l->p[i].slot->server == l->p[k].slot->pid) {
			*mem += l->p[i].now->mem;
			*busy += l->p[i].busy;
		}
}

enum list { COMPUTE, MPS };

static nvmlReturn_t list(nvmlDevice_t device, enum list what, unsigned int *count, nvmlProcessInfo_v2_t *infos,
			 nvmlProcessInfo_v1_t *old)
{
	const struct sim_device *d;
	struct live l;
	unsigned int n = 0;
	if (!count || (*count && !infos && !old))
		return NVML_ERROR_INVALID_ARGUMENT;
	int figure = what == MPS ? SIM_F_MPS_PROCESSES : SIM_F_PROCESSES;
	const struct sim_instance *in;
	nvmlReturn_t r = sim_enter_any(device, figure, &d, &in);
	if (r != NVML_SUCCESS)
		return r;
	if (what == MPS && !(d->caps & SIM_CAP_MPS_LIST)) {
		sim_leave();
		return NVML_ERROR_NOT_SUPPORTED;
	}
	r = sim_look(d, &l);
	for (unsigned int k = 0; r == NVML_SUCCESS && k < l.count; k++) {
		double mem, busy;
		if (what == MPS ? l.p[k].slot->kind != SIM_CLIENT : !shown(d, &l, k))
			continue;
		unsigned int at = l.p[k].slot->instance;
		if (in && at != device->instance)
			continue;
		charge(d, &l, k, &mem, &busy);
		unsigned long long bytes = sim_figure(d, figure, mem * MIB, ~0ULL >> 1);
		if (n < *count && infos) {
			infos[n].pid = (unsigned int)l.p[k].slot->pid;
			infos[n].usedGpuMemory = bytes;
			infos[n].gpuInstanceId = infos[n].computeInstanceId = NO_INSTANCE;
			if (at >= 1 && at <= sim_instances(d)) {
				infos[n].gpuInstanceId = d->instance[at - 1].gpu_instance;
				infos[n].computeInstanceId = d->instance[at - 1].compute_instance;
			}
		} else if (n < *count) {
			old[n].pid = (unsigned int)l.p[k].slot->pid;
			old[n].usedGpuMemory = bytes;
		}
		n++;
	}
	sim_leave();
	if (r != NVML_SUCCESS)
		return r;
	if (n > *count)
		r = NVML_ERROR_INSUFFICIENT_SIZE;
	*count = n;
	return r;
}

#define LIST_GETTERS(name, what)                                                                                   \
	EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos)            \
	{                                                                                                          \
		return list(device, what, count, NULL, infos);                                                     \
	}                                                                                                          \
	EXPORT nvmlReturn_t name##_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos)       \
	{                                                                                                          \
		return list(device, what, count, infos, NULL);                                                     \
	}                                                                                                          \
	EXPORT nvmlReturn_t name##_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos)       \
	{                                                                                                          \
		return list(device, what, count, infos, NULL);                                                     \
	}

LIST_GETTERS(nvmlDeviceGetComputeRunningProcesses, COMPUTE)
LIST_GETTERS(nvmlDeviceGetMPSComputeRunningProcesses, MPS)

static nvmlReturn_t none(nvmlDevice_t device, unsigned int *count)
{
	const struct sim_device *d;
	nvmlReturn_t r = sim_enter(device, SIM_F_PROCESSES, &d);
	if (r != NVML_SUCCESS)
		return r;
	sim_leave();
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = 0;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t d, unsigned int *count, void *infos)
{
	(void)infos;
	return none(d, count);
}
EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t d, unsigned int *count, void *infos)
{
	(void)infos;
	return none(d, count);
}
EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t d, unsigned int *count, void *infos)
{
	(void)infos;
	return none(d, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
						    unsigned int *count, unsigned long long last_seen)
{
	const struct sim_device *d;
	struct live l;
	unsigned int n = 0;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t r = sim_enter_whole(device, SIM_F_PROCESS_UTILIZATION, &d);
	if (r != NVML_SUCCESS)
		return r;
	r = sim_look(d, &l);
	unsigned long long now = sim_wall_us();
	for (unsigned int k = 0; r == NVML_SUCCESS && last_seen < now && k < l.count; k++) {
		double mem, busy;
		if (!shown(d, &l, k))
			continue;
		charge(d, &l, k, &mem, &busy);
		if (samples && n < *count) {
			memset(&samples[n], 0, sizeof samples[n]);
			samples[n].pid = (unsigned int)l.p[k].slot->pid;
			samples[n].timeStamp = sim_figure(d, SIM_F_PROCESS_UTILIZATION, (double)now, ~0ULL >> 1);
			samples[n].smUtil = sim_figure32(d, SIM_F_PROCESS_UTILIZATION, busy * 100);
			samples[n].memUtil = sim_figure32(d, SIM_F_PROCESS_UTILIZATION, busy * 60);
		}
		n++;
	}
	sim_leave();
	if (r != NVML_SUCCESS)
		return r;
	if (n == 0)
		return NVML_ERROR_NOT_FOUND;
	if (!samples || n > *count)
		r = NVML_ERROR_INSUFFICIENT_SIZE;
	*count = n;
	return r;
}

EXPORT nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t device, int *mode)
{
	const struct sim_device *d;
	nvmlReturn_t r = sim_enter_whole(device, SIM_F_ACCOUNTING, &d);
	if (r != NVML_SUCCESS)
		return r;
	if (mode)
		*mode = d->accounting == 1;
	sim_leave();
	return mode ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlDeviceSetAccountingMode(nvmlDevice_t device, int mode)
{
	return sim_set_accounting(device, (unsigned int)mode);
}

EXPORT nvmlReturn_t nvmlDeviceClearAccountingPids(nvmlDevice_t device)
{
	return sim_clear_accounting(device);
}

EXPORT nvmlReturn_t nvmlDeviceGetAccountingBufferSize(nvmlDevice_t device, unsigned int *size)
{
	const struct sim_device *d;
	nvmlReturn_t r = sim_enter_whole(device, SIM_F_ACCOUNTING, &d);
	if (r != NVML_SUCCESS)
		return r;
	sim_leave();
	if (!size)
		return NVML_ERROR_INVALID_ARGUMENT;
	*size = SIM_ACCT;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count, unsigned int *pids)
{
	const struct sim_device *d;
	struct live l;
	unsigned int n = 0;
	if (!count || (*count && !pids))
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t r = sim_enter_whole(device, SIM_F_ACCOUNTING, &d);
	if (r != NVML_SUCCESS)
		return r;
	r = d->accounting ? sim_look(d, &l) : NVML_ERROR_NOT_SUPPORTED;
	if (r == NVML_SUCCESS) {
		for (int i = 0; i < SIM_ACCT; i++) {
			int32_t pid = d->dyn[d->cur].acct[i].pid;
			if (pid > 0 && n++ < *count)
				pids[n - 1] = (unsigned int)pid;
		}
		for (unsigned int k = 0; k < l.count; k++)
			if (l.p[k].slot->kind != SIM_SERVER && n++ < *count)
				pids[n - 1] = (unsigned int)l.p[k].slot->pid;
	}
	sim_leave();
	if (r != NVML_SUCCESS)
		return r;
	if (n > *count)
		r = NVML_ERROR_INSUFFICIENT_SIZE;
	*count = n;
	return r;
}

static unsigned int percent(double busy, double seconds)
{
	return seconds > 0 ? (unsigned int)(busy / seconds * 100 + 0.5) : 0;
}

EXPORT nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid, nvmlAccountingStats_t *st)
{
	const struct sim_device *d;
	struct live l;
	if (!st)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t r = sim_enter_whole(device, SIM_F_ACCOUNTING, &d);
	if (r != NVML_SUCCESS)
		return r;
	if (!d->accounting)
		r = NVML_ERROR_NOT_SUPPORTED;
	else
		r = sim_look(d, &l);
	if (r != NVML_SUCCESS) {
		sim_leave();
		return r;
	}
	memset(st, 0, sizeof *st);
	r = NVML_ERROR_NOT_FOUND;
	double start = 0;
	/* The newest of those that had this pid. */
	for (unsigned int i = 0; i < SIM_ACCT; i++) {
		const struct sim_acct *a = &d->dyn[d->cur].acct[i];
		if ((unsigned int)a->pid != pid || a->pid <= 0 || (r == NVML_SUCCESS && a->start_t < start))
			continue;
		r = NVML_SUCCESS;
		start = a->start_t;
		st->gpuUtilization = percent(a->busy_s, a->end_t - a->start_t);
		st->maxMemoryUsage = sim_figure(d, SIM_F_ACCOUNTING, a->mem_max * MIB, ~0ULL >> 1);
		st->time = sim_figure(d, SIM_F_ACCOUNTING, (a->end_t - a->start_t) * 1000, ~0ULL >> 1);
	}
	for (unsigned int k = 0; k < l.count; k++) {
		const struct sim_member *m = l.p[k].member;
		if ((unsigned int)l.p[k].slot->pid != pid || l.p[k].slot->kind == SIM_SERVER)
			continue;
		r = NVML_SUCCESS;
		start = m->start_t;
		double since = l.t - d->dyn[d->cur].t;
		st->gpuUtilization = percent(m->busy_s + l.p[k].busy * since, l.t - m->start_t);
		st->maxMemoryUsage = sim_figure(d, SIM_F_ACCOUNTING, m->mem_max * MIB, ~0ULL >> 1);
		st->time = 0; /* as NVML: only of processes that have ended */
		st->isRunning = 1;
	}
	if (r == NVML_SUCCESS) {
		st->gpuUtilization = sim_figure32(d, SIM_F_ACCOUNTING, st->gpuUtilization);
		st->memoryUtilization = sim_figure32(d, SIM_F_ACCOUNTING, st->gpuUtilization * 0.6);
		st->startTime = sim_wall_us() - (unsigned long long)((l.t - start) / sim_scale() * 1e6);
	}
	sim_leave();
	return r;
}
