#define _GNU_SOURCE
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
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
static int writable;
static unsigned char *base;
static size_t length;
static struct nvmlDevice_st handles[SIM_MAX_DEVICES][1 + SIM_INSTANCES];

static int64_t monotonic_ns(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000LL + ts.tv_nsec;
}

unsigned long long sim_wall_us(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_REALTIME, &ts);
	return ts.tv_sec * 1000000ULL + ts.tv_nsec / 1000;
}

const struct sim_header *sim_header(void)
{
	return (const struct sim_header *)base;
}

static struct sim_device *device_at(unsigned int i)
{
	return (struct sim_device *)(base + SIM_HEADER_SIZE + i * sizeof(struct sim_device));
}

nvmlDevice_t sim_handle(unsigned int index, unsigned int instance)
{
	struct nvmlDevice_st *h = &handles[index][instance];
	*h = (struct nvmlDevice_st){index, instance};
	return (nvmlDevice_t){h};
}

double sim_scale(void)
{
	return sim_header()->scale;
}

double sim_seconds(int64_t ns)
{
	return (ns - sim_header()->t0ns) * 1e-9 * sim_scale();
}

static nvmlReturn_t refuse(const char *path, const char *why, nvmlReturn_t code)
{
	fprintf(stderr, "libnvidia-ml (simulated): %s: %s\n", path, why);
	if (base)
		munmap(base, length);
	if (fd >= 0)
		close(fd);
	base = NULL;
	fd = -1;
	return code;
}

static nvmlReturn_t load(void)
{
	const char *path = getenv("GPUSIM_STATE");
	if (!path || !*path)
		return refuse("GPUSIM_STATE", "not set", NVML_ERROR_DRIVER_NOT_LOADED);
	fd = open(path, O_RDWR | O_CLOEXEC);
	writable = fd >= 0;
	if (fd < 0)
		fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return refuse(path, strerror(errno), NVML_ERROR_DRIVER_NOT_LOADED);
	struct stat st;
	if (fstat(fd, &st) || st.st_size < (off_t)SIM_HEADER_SIZE)
		return refuse(path, "not a state file of simulated GPUs", NVML_ERROR_DRIVER_NOT_LOADED);
	length = st.st_size;
	base = mmap(NULL, length, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
	if (base == MAP_FAILED) {
		base = NULL;
		return refuse(path, strerror(errno), NVML_ERROR_DRIVER_NOT_LOADED);
	}
	const struct sim_header *h = sim_header();
	if (memcmp(h->magic, SIM_MAGIC, sizeof h->magic) || h->version != SIM_VERSION)
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
	nvmlReturn_t r = NVML_SUCCESS;
	pthread_mutex_lock(&mutex);
	if (!users) {
		r = NVML_ERROR_UNINITIALIZED;
	} else if (--users == 0) {
		munmap(base, length);
		close(fd);
		base = NULL;
		fd = -1;
	}
	pthread_mutex_unlock(&mutex);
	return r;
}

/* Tries for two seconds: a holder stopped by a signal must not stop us too. */
static nvmlReturn_t lock_as(int how)
{
	pthread_mutex_lock(&mutex);
	nvmlReturn_t r = users ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
	int64_t deadline = monotonic_ns() + 2000000000LL;
	while (r == NVML_SUCCESS && flock(fd, how | LOCK_NB)) {
		if ((errno != EWOULDBLOCK && errno != EINTR) || monotonic_ns() > deadline)
			r = NVML_ERROR_TIMEOUT;
		struct timespec pause = {0, 200000};
		nanosleep(&pause, NULL);
	}
	if (r != NVML_SUCCESS) {
		pthread_mutex_unlock(&mutex);
		return r;
	}
	return NVML_SUCCESS;
}

struct sim_entry sim_lock(void)
{
	return (struct sim_entry){.r = lock_as(LOCK_SH)};
}

void sim_leave(struct sim_entry *e)
{
	if (e->r != NVML_SUCCESS)
		return;
	flock(fd, LOCK_UN);
	pthread_mutex_unlock(&mutex);
}

static struct sim_entry enter_as(int how, nvmlDevice_t h, int figure, enum sim_scope scope)
{
	struct sim_entry e = {.r = lock_as(how)};
	if (e.r != NVML_SUCCESS)
		return e;
	size_t instance = h.handle->instance;
	nvmlReturn_t r = NVML_SUCCESS;
	e.d = device_at(h.handle->index);
	if (h.handle->index >= sim_header()->devices || instance > e.d->instances)
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

struct sim_entry sim_enter(nvmlDevice_t h, int figure, enum sim_scope scope)
{
	return enter_as(LOCK_SH, h, figure, scope);
}

/* The folder of a group that is gone makes room for another's. */
nvmlReturn_t sim_set_limit(nvmlDevice_t h, const char *group, double mib)
{
	__attribute__((cleanup(sim_leave))) struct sim_entry e = enter_as(LOCK_EX, h, SIM_F_MEMORY, WHOLE);
	if (e.r != NVML_SUCCESS)
		return e.r;
	if (!(e.d->caps & SIM_CAP_LIMITS))
		return NVML_ERROR_NOT_SUPPORTED;
	if (!writable || geteuid() != 0)
		return NVML_ERROR_NO_PERMISSION;
	struct stat st;
	if (stat(group, &st) || !S_ISDIR(st.st_mode))
		return NVML_ERROR_NOT_FOUND;
	struct sim_limit *free = NULL;
	for (struct sim_limit *l = e.d->limit; l < e.d->limit + SIM_LIMITS; l++) {
		if (!strcmp(l->group, group)) {
			free = l;
			break;
		}
		if (!free && stat(l->group, &st))
			free = l;
	}
	if (!free || strlen(group) >= sizeof free->group)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(free->group, group);
	free->hard = mib;
	return NVML_SUCCESS;
}

nvmlReturn_t sim_filled(unsigned int *count, unsigned int n)
{
	nvmlReturn_t r = n > *count ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
	*count = n;
	return r;
}

/* Whether the process that started at the given time is still there. */
static int alive(int32_t pid, uint64_t start)
{
	char path[32], buf[1024];
	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	int f = open(path, O_RDONLY | O_CLOEXEC);
	if (f < 0)
		return errno != ENOENT && !(kill(pid, 0) && errno == ESRCH);
	ssize_t n = read(f, buf, sizeof buf - 1);
	close(f);
	if (n <= 0)
		return 0;
	buf[n] = 0;
	/* The command in it can hold anything: what follows the last ')' counts. */
	char *p = strrchr(buf, ')');
	char state;
	unsigned long long when;
	if (!p || sscanf(p + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &state, &when) != 2)
		return 0;
	return when == start && state != 'Z' && state != 'X';
}

static int present(const struct sim_member *m)
{
	return m->status == SIM_RUNNING || m->status == SIM_PAUSED;
}

void sim_look(const struct sim_device *d, struct live *l)
{
	const struct sim_dyn *y = &d->dyn[d->cur];
	double now = sim_seconds(monotonic_ns()), busy = 0;

	memset(l, 0, sizeof *l);
	l->mem = d->mem_reserved;
	for (int i = 0; i < SIM_SLOTS; i++) {
		const struct sim_member *m = &y->member[i];
		const struct sim_slot *s = &d->slot[i];
		if (!present(m))
			continue;
		if (!alive(s->pid, s->start)) {
			l->died = 1;
			continue;
		}
		l->p[l->count].slot = s;
		l->p[l->count++].member = m;
		busy += m->busy;
		l->mem += m->mem;
		if (s->instance)
			l->inst_mem[s->instance - 1] += m->mem;
	}
	/* Until the others notice a death, in milliseconds, what they do is near enough what they did before. */
	double part = !l->died ? 1 : y->gpu > 0 ? least(1, busy / y->gpu) : 0;
	l->gpu = y->gpu * part;
	l->core = y->core * part;
	l->pcie = y->pcie_mbps * part;
	l->power = !l->died ? y->power_w : l->count ? d->power_active + (y->power_w - d->power_active) * part : d->power_idle;
	/* What is stored holds since the last event. */
	double dt = most(0, now - y->t);
	l->t = most(now, y->t);
	l->busy_s = y->busy_s + l->gpu * dt;
	l->core_s = y->core_s + l->core * dt;
	l->pcie_mb = y->pcie_mb + l->pcie * dt;
	for (int i = 0; i < SIM_INSTANCES; i++) {
		l->inst_busy_s[i] = y->inst_busy_s[i] + y->inst_gpu[i] * dt;
		l->inst_core_s[i] = y->inst_core_s[i] + y->inst_core[i] * dt;
	}
}

unsigned long long sim_figure(const struct sim_device *d, int figure, double v, unsigned long long max)
{
	switch (d->fault[figure].mode) {
	case SIM_FAULT_ZERO:
		return 0;
	case SIM_FAULT_HUGE:
		return max;
	case SIM_FAULT_BACKWARDS:
		return 1000000000ULL - (unsigned long long)(monotonic_ns() / 1000000) % 1000000000ULL;
	}
	if (!(v > 0))
		return 0;
	return v >= (double)max ? max : (unsigned long long)(v + 0.5);
}

unsigned int sim_figure32(const struct sim_device *d, int figure, double v)
{
	return (unsigned int)sim_figure(d, figure, v, 0xFFFFFFFFULL);
}

nvmlReturn_t sim_string(char *dst, unsigned int len, const char *src, size_t max)
{
	size_t n = strnlen(src, max);
	if (!dst)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (n + 1 > len)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(dst, src, n);
	dst[n] = 0;
	return NVML_SUCCESS;
}
