/*
 * Loads a library that answers as NVML and prints what it tells, one "key value"
 * a line; a call that fails prints "key !code". Usage: probe LIBRARY [write]
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "../nvmlsim/api.h"

static void *lib;

static void *sym(const char *name)
{
	void *p = dlsym(lib, name);
	if (!p)
		printf("%s missing\n", name);
	return p;
}

#define CALL(ret, name, ...) \
	({ nvmlReturn_t (*f)() = (nvmlReturn_t(*)())sym(#name); ret = f ? f(__VA_ARGS__) : -1; ret; })

static void number(nvmlDevice_t d, int i, const char *name)
{
	unsigned int v = 0;
	nvmlReturn_t (*f)() = (nvmlReturn_t(*)())sym(name);
	nvmlReturn_t r = f ? f(d, &v) : -1;
	if (r)
		printf("%d.%s !%d\n", i, name + strlen("nvmlDeviceGet"), r);
	else
		printf("%d.%s %u\n", i, name + strlen("nvmlDeviceGet"), v);
}

static void string(nvmlDevice_t d, int i, const char *name)
{
	char v[96] = "";
	nvmlReturn_t (*f)() = (nvmlReturn_t(*)())sym(name);
	nvmlReturn_t r = f ? f(d, v, (unsigned int)sizeof v) : -1;
	if (r)
		printf("%d.%s !%d\n", i, name + strlen("nvmlDeviceGet"), r);
	else
		printf("%d.%s %s\n", i, name + strlen("nvmlDeviceGet"), v);
}

static void processes(nvmlDevice_t d, int i, const char *name)
{
	nvmlProcessInfo_t infos[64];
	unsigned int n = 64;
	nvmlReturn_t (*f)() = (nvmlReturn_t(*)())sym(name);
	nvmlReturn_t r = f ? f(d, &n, infos) : -1;
	if (r) {
		printf("%d.%s !%d\n", i, name + strlen("nvmlDeviceGet"), r);
		return;
	}
	printf("%d.%s", i, name + strlen("nvmlDeviceGet"));
	for (unsigned int k = 0; k < n; k++)
		printf(" %u:%llu", infos[k].pid, infos[k].usedGpuMemory >> 20);
	printf("\n");
}

static void usage(nvmlDevice_t d, int i)
{
	nvmlReturn_t r;
	nvmlUtilization_t u;
	nvmlMemory_t m;
	nvmlProcessUtilizationSample_t s[64];
	unsigned int v, n;
	unsigned long long e;

	if (CALL(r, nvmlDeviceGetUtilizationRates, d, &u))
		printf("%d.Utilization !%d\n", i, r);
	else
		printf("%d.Utilization %u %u\n", i, u.gpu, u.memory);
	if (CALL(r, nvmlDeviceGetMemoryInfo, d, &m))
		printf("%d.Memory !%d\n", i, r);
	else
		printf("%d.Memory %llu %llu %llu\n", i, m.total >> 20, m.used >> 20, m.free >> 20);
	for (int c = 0; c < 2; c++)
		if (CALL(r, nvmlDeviceGetPcieThroughput, d, c, &v))
			printf("%d.Pcie%d !%d\n", i, c, r);
		else
			printf("%d.Pcie%d %u\n", i, c, v);
	if (CALL(r, nvmlDeviceGetTemperature, d, 0, &v))
		printf("%d.Temperature !%d\n", i, r);
	else
		printf("%d.Temperature %u\n", i, v);
	if (CALL(r, nvmlDeviceGetTotalEnergyConsumption, d, &e))
		printf("%d.Energy !%d\n", i, r);
	else
		printf("%d.Energy %llu\n", i, e);
	number(d, i, "nvmlDeviceGetPowerUsage");
	processes(d, i, "nvmlDeviceGetComputeRunningProcesses_v3");
	processes(d, i, "nvmlDeviceGetMPSComputeRunningProcesses_v3");
	n = 64;
	if (CALL(r, nvmlDeviceGetProcessUtilization, d, s, &n, 0ULL)) {
		printf("%d.ProcessUtilization !%d\n", i, r);
	} else {
		printf("%d.ProcessUtilization", i);
		for (unsigned int k = 0; k < n; k++)
			printf(" %u:%u", s[k].pid, s[k].smUtil);
		printf("\n");
	}
}

static void accounting(nvmlDevice_t d, int i)
{
	nvmlReturn_t r;
	printf("%d.SetAccounting %d\n", i, CALL(r, nvmlDeviceSetAccountingMode, d, 1));
	number(d, i, "nvmlDeviceGetAccountingMode");
}

int main(int argc, char **argv)
{
	nvmlReturn_t r;
	unsigned int n = 0;
	char version[80];

	lib = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
	if (!lib) {
		fprintf(stderr, "%s\n", dlerror());
		return 2;
	}
	if (CALL(r, nvmlInit_v2)) {
		printf("init !%d\n", r);
		return 1;
	}
	if (!CALL(r, nvmlSystemGetDriverVersion, version, 80u))
		printf("driver %s\n", version);
	CALL(r, nvmlDeviceGetCount_v2, &n);
	printf("count %u\n", n);
	for (unsigned int i = 0; i < n; i++) {
		nvmlDevice_t d;
		nvmlPciInfo_t pci;
		int major, minor;
		if (CALL(r, nvmlDeviceGetHandleByIndex_v2, i, &d)) {
			printf("%u.handle !%d\n", i, r);
			continue;
		}
		string(d, i, "nvmlDeviceGetName");
		string(d, i, "nvmlDeviceGetUUID");
		number(d, i, "nvmlDeviceGetMinorNumber");
		number(d, i, "nvmlDeviceGetArchitecture");
		number(d, i, "nvmlDeviceGetNumGpuCores");
		number(d, i, "nvmlDeviceGetCurrPcieLinkGeneration");
		number(d, i, "nvmlDeviceGetCurrPcieLinkWidth");
		number(d, i, "nvmlDeviceGetMemoryBusWidth");
		if (!CALL(r, nvmlDeviceGetCudaComputeCapability, d, &major, &minor))
			printf("%u.Capability %d.%d\n", i, major, minor);
		if (!CALL(r, nvmlDeviceGetPciInfo_v3, d, &pci))
			printf("%u.Pci %s %08x\n", i, pci.busId, pci.pciDeviceId);
		printf("%u.Unsupported %d\n", i, CALL(r, nvmlDeviceGetFanSpeed, d, &n));
		usage(d, (int)i);
		if (argc > 2)
			accounting(d, (int)i);
		if (dlsym(lib, "nvmlDeviceGetCount_v2"))
			CALL(r, nvmlDeviceGetCount_v2, &n);
	}
	printf("bogus handle %d\n", CALL(r, nvmlDeviceGetPowerUsage, (nvmlDevice_t)&n, &n));
	printf("shutdown %d\n", CALL(r, nvmlShutdown));
	printf("after shutdown %d\n", CALL(r, nvmlDeviceGetCount_v2, &n));
	return 0;
}
