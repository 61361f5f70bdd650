#define _GNU_SOURCE
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned int users; /* nvmlInit calls without their nvmlShutdown */
static int fd = -1;
static size_t length;
const struct sim_file_header *sim_header;
static struct nvmlDevice_st handles[SIM_MAX_DEVICES][1 + SIM_INSTANCES];

static int64_t clock_ns(clockid_t clock)
{
	struct timespec ts;
	clock_gettime(clock, &ts);
	return ts.tv_sec * 1000000000LL + ts.tv_nsec;
}

unsigned long long sim_wall_us(void) { return clock_ns(CLOCK_REALTIME) / 1000; }

nvmlDevice_t sim_handle(unsigned int index, unsigned int instance)
{
	struct nvmlDevice_st *h = &handles[index][instance];
	*h = (struct nvmlDevice_st){index, instance};
	return (nvmlDevice_t){h};
}

static void unload(void)
{
	if (sim_header)
		munmap((void *)sim_header, length);
	if (fd >= 0)
		close(fd);
	sim_header = NULL;
	fd = -1;
}

static nvmlReturn_t refuse(const char *path, const char *why, nvmlReturn_t code)
{
	fprintf(stderr, "libnvidia-ml (simulated): %s: %s\n", path, why);
	unload();
	return code;
}

static nvmlReturn_t load(void)
{
	const char *path = getenv("GPUSIM_STATE");
	if (!path || !*path)
		return refuse("GPUSIM_STATE", "not set", NVML_ERROR_DRIVER_NOT_LOADED);
	struct stat st;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st))
		return refuse(path, strerror(errno), NVML_ERROR_DRIVER_NOT_LOADED);
	length = st.st_size;
	if (length < SIM_HEADER_SIZE)
		return refuse(path, "not a state file of simulated GPUs", NVML_ERROR_DRIVER_NOT_LOADED);
	void *base = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		return refuse(path, strerror(errno), NVML_ERROR_DRIVER_NOT_LOADED);
	sim_header = base;
	if (memcmp(sim_header->magic, SIM_MAGIC, sizeof sim_header->magic) || sim_header->version != SIM_VERSION)
		return refuse(path, "not made by this version of gpusim", NVML_ERROR_LIB_RM_VERSION_MISMATCH);
	return NVML_SUCCESS;
}

nvmlReturn_t sim_open(void)
{
	pthread_mutex_lock(&mutex);
	nvmlReturn_t r = users ? NVML_SUCCESS : load();
	if (r == NVML_SUCCESS)
		users++;
	pthread_mutex_unlock(&mutex);
	return r;
}

nvmlReturn_t sim_close(void)
{
	pthread_mutex_lock(&mutex);
	nvmlReturn_t r = users ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
	if (users && --users == 0)
		unload();
	pthread_mutex_unlock(&mutex);
	return r;
}

/* Tries for some seconds: a holder stopped by a signal must not stop us too. */
static nvmlReturn_t lock(void)
{
	pthread_mutex_lock(&mutex);
	nvmlReturn_t r = users ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
	for (int tries = 0; r == NVML_SUCCESS && flock(fd, LOCK_SH | LOCK_NB); tries++) {
		if ((errno != EWOULDBLOCK && errno != EINTR) || tries == 10000)
			r = NVML_ERROR_TIMEOUT;
		usleep(200);
	}
	if (r != NVML_SUCCESS)
		pthread_mutex_unlock(&mutex);
	return r;
}

void sim_leave(struct sim_entry *e)
{
	if (e->r != NVML_SUCCESS)
		return;
	flock(fd, LOCK_UN);
	pthread_mutex_unlock(&mutex);
}

struct sim_entry sim_enter(nvmlDevice_t h, int figure, enum sim_scope scope)
{
	struct sim_entry e = {.r = lock()};
	if (e.r != NVML_SUCCESS)
		return e;
	long index = h.handle->index, instance = h.handle->instance;
	nvmlReturn_t r = NVML_SUCCESS;
	e.d = (const struct sim_device_rec *)((const char *)sim_header + SIM_HEADER_SIZE) + index;
	if (index >= sim_header->devices || instance > e.d->instances)
		r = NVML_ERROR_INVALID_ARGUMENT;
	else if (e.d->lost)
		r = NVML_ERROR_GPU_IS_LOST;
	else if (e.d->fault[figure].mode == SIM_FAULT_RETURN)
		r = e.d->fault[figure].value;
	else if ((scope != ANY && instance) || (scope == WHOLE && e.d->mig))
		r = NVML_ERROR_NOT_SUPPORTED;
	else if (instance)
		e.in = &e.d->instance[instance - 1];
	if (r != NVML_SUCCESS)
		sim_leave(&e);
	e.r = r;
	return e;
}

nvmlReturn_t sim_filled(unsigned int *count, unsigned int n)
{
	nvmlReturn_t r = n > *count ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
	*count = n;
	return r;
}

/* Whether the process that started at the given time is still there. */
static int alive(long pid, uint64_t start)
{
	char path[40], buf[1024];
	snprintf(path, sizeof path, "/proc/%ld/stat", pid);
	int f = open(path, O_RDONLY | O_CLOEXEC);
	if (f < 0)
		return errno != ENOENT; /* another user's that /proc hides */
	ssize_t n = read(f, buf, sizeof buf - 1);
	close(f);
	buf[n > 0 ? n : 0] = 0;
	/* The command in it can hold anything: what follows the last ')' counts. */
	char *p = strrchr(buf, ')');
	char state;
	unsigned long long when;
	if (!p || sscanf(p + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &state, &when) != 2)
		return 0;
	return when == start && state != 'Z' && state != 'X';
}

void sim_look(const struct sim_device_rec *d, struct live *l)
{
	*l = (struct live){.y = d->dyn[d->cur]};
	struct sim_dyn *y = &l->y;
	double busy = 0;

	y->mem_mib = 0;
	for (int i = 0; i < SIM_SLOTS; i++) {
		const struct sim_member *m = &y->member[i];
		const struct sim_slot *s = &d->slot[i];
		if (m->status != SIM_RUNNING && m->status != SIM_PAUSED)
			continue;
		if (!alive(s->pid, s->start)) {
			l->died = 1;
			continue;
		}
		l->p[l->count].slot = s;
		l->p[l->count].mem = m->mem_mib;
		l->p[l->count++].busy = m->busy;
		busy += m->busy;
		y->mem_mib += m->mem_mib;
		if (s->instance)
			l->inst_mem[s->instance - 1] += m->mem_mib;
	}
	/* Until the others notice a death, in milliseconds, what they do is near enough what they did before. */
	if (l->died) {
		double part = y->gpu > 0 ? least(1, busy / y->gpu) : 0;
		y->gpu *= part;
		y->core *= part;
		y->pcie_mbps *= part;
		y->power_w = l->count ? d->power_active + (y->power_w - d->power_active) * part : d->power_idle;
	}
	/* What is stored holds since the last event. */
	l->t = most((clock_ns(CLOCK_MONOTONIC) - sim_header->t0ns) * 1e-9 * sim_header->scale, y->t);
	double dt = l->t - y->t;
	y->busy_s += y->gpu * dt;
	y->core_s += y->core * dt;
	y->pcie_mb += y->pcie_mbps * dt;
	for (int i = 0; i < SIM_INSTANCES; i++) {
		y->inst_busy_s[i] += y->inst_gpu[i] * dt;
		y->inst_core_s[i] += y->inst_core[i] * dt;
	}
}

unsigned long long sim_figure(const struct sim_device_rec *d, int figure, double v, unsigned long long max)
{
	switch (d->fault[figure].mode) {
	case SIM_FAULT_ZERO:
		return 0;
	case SIM_FAULT_HUGE:
		return max;
	case SIM_FAULT_BACKWARDS:
		return 1000000000ULL - (unsigned long long)(clock_ns(CLOCK_MONOTONIC) / 1000000) % 1000000000ULL;
	}
	if (!(v > 0))
		return 0;
	return v >= (double)max ? max : (unsigned long long)(v + 0.5);
}

unsigned int sim_figure32(const struct sim_device_rec *d, int figure, double v)
{
	return (unsigned int)sim_figure(d, figure, v, 0xFFFFFFFFULL);
}

nvmlReturn_t sim_string(char *dst, unsigned int len, const char *src, size_t max)
{
	size_t n = strnlen(src, max);
	if (n + 1 > len)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(dst, src, n);
	dst[n] = 0;
	return NVML_SUCCESS;
}
