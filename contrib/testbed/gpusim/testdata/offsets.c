/* Prints the state file's layout as the C compiler sees it. */
#include <stddef.h>
#include <stdio.h>

#include "../nvmlsim/state.h"

#define SIZE(t) printf(#t " size %zu\n", sizeof(struct t))
#define OFF(t, f) printf(#t "." #f " %zu\n", offsetof(struct t, f))

int main(void)
{
	SIZE(sim_header);
	OFF(sim_header, version); OFF(sim_header, devices); OFF(sim_header, size); OFF(sim_header, scale);
	OFF(sim_header, t0_ns); OFF(sim_header, driver); OFF(sim_header, cuda); OFF(sim_header, check);
	SIZE(sim_point);
	OFF(sim_point, until); OFF(sim_point, gpu); OFF(sim_point, core); OFF(sim_point, pcie); OFF(sim_point, mem);
	SIZE(sim_slot);
	OFF(sim_slot, pid); OFF(sim_slot, uid); OFF(sim_slot, start); OFF(sim_slot, server); OFF(sim_slot, kind);
	OFF(sim_slot, points); OFF(sim_slot, instance); OFF(sim_slot, duration); OFF(sim_slot, step); OFF(sim_slot, app); OFF(sim_slot, point);
	SIZE(sim_member);
	OFF(sim_member, status); OFF(sim_member, point); OFF(sim_member, done); OFF(sim_member, slowdown);
	OFF(sim_member, start_t); OFF(sim_member, end_t);
	OFF(sim_member, mem_max);
	SIZE(sim_instance);
	OFF(sim_instance, uuid); OFF(sim_instance, profile); OFF(sim_instance, gpu_instance);
	OFF(sim_instance, compute_instance); OFF(sim_instance, slices); OFF(sim_instance, sms);
	OFF(sim_instance, mem_total);
	SIZE(sim_change);
	OFF(sim_change, t); OFF(sim_change, gpu);
	SIZE(sim_dyn);
	OFF(sim_dyn, t); OFF(sim_dyn, busy_s); OFF(sim_dyn, core_s); OFF(sim_dyn, mem_mib_s); OFF(sim_dyn, pcie_mb);
	OFF(sim_dyn, energy_j); OFF(sim_dyn, occupied_s); OFF(sim_dyn, mem_max); OFF(sim_dyn, gpu); OFF(sim_dyn, core);
	OFF(sim_dyn, pcie); OFF(sim_dyn, mem); OFF(sim_dyn, power); OFF(sim_dyn, started); OFF(sim_dyn, finished);
	OFF(sim_dyn, oom); OFF(sim_dyn, killed); OFF(sim_dyn, faults); OFF(sim_dyn, member);
	OFF(sim_dyn, changes); OFF(sim_dyn, change);
	OFF(sim_dyn, inst_busy_s); OFF(sim_dyn, inst_core_s); OFF(sim_dyn, inst_gpu); OFF(sim_dyn, inst_core);
	SIZE(sim_fault);
	OFF(sim_fault, mode); OFF(sim_fault, value);
	SIZE(sim_device);
	OFF(sim_device, uuid); OFF(sim_device, name); OFF(sim_device, model);
	OFF(sim_device, minor); OFF(sim_device, arch); OFF(sim_device, cc_major); OFF(sim_device, cc_minor);
	OFF(sim_device, cores); OFF(sim_device, sms); OFF(sim_device, bus); OFF(sim_device, pci_id);
	OFF(sim_device, pcie_gen); OFF(sim_device, pcie_width); OFF(sim_device, caps);
	OFF(sim_device, max_clients); OFF(sim_device, same_user); OFF(sim_device, lost); OFF(sim_device, accounting);
	OFF(sim_device, mem_total); OFF(sim_device, mem_reserved); OFF(sim_device, mem_context);
	OFF(sim_device, pcie_mbps); OFF(sim_device, power_idle); OFF(sim_device, power_active);
	OFF(sim_device, power_max); OFF(sim_device, temp_idle); OFF(sim_device, temp_max);
	OFF(sim_device, bus_bits);
	OFF(sim_device, mig); OFF(sim_device, instances); OFF(sim_device, instance); OFF(sim_device, fault); OFF(sim_device, looked_ns); OFF(sim_device, cur);
	OFF(sim_device, dyn); OFF(sim_device, slot);
	printf("figures %d\n", SIM_F_COUNT);
	printf("constants %u %u %d %d %d %d %d %d\n", SIM_VERSION, SIM_HEADER_SIZE, SIM_MAX_DEVICES, SIM_SLOTS, SIM_POINTS,
	       SIM_FAULTS, SIM_INSTANCES, SIM_CHANGES);
	return 0;
}
