package gpusim

// Snapshot is a GPU at one moment, with what it has summed up since the state
// file was made: the mean utilisation between two snapshots a and b is
// (b.BusyS−a.BusyS)/(b.T−a.T), the mean of the memory in use
// (b.MemMiBS−a.MemMiBS)/(b.T−a.T)/MemTotalMiB.
type Snapshot struct {
	Index       int     `json:"index"`
	UUID        string  `json:"uuid"`
	Name        string  `json:"name"`
	Model       string  `json:"model"`
	Minor       int     `json:"minor"`
	MemTotalMiB float64 `json:"mem_total_mib"`
	Lost        bool    `json:"lost"`

	T        float64 `json:"t_s"`       // GPU seconds since the file was made
	GPU      float64 `json:"gpu"`       // fraction of time any kernel runs, 0..1
	Core     float64 `json:"core"`      // fraction of the SMs busy, 0..1
	MemMiB   float64 `json:"mem_mib"`   // memory held
	PCIeMBps float64 `json:"pcie_mbps"` // both directions
	PowerW   float64 `json:"power_w"`

	BusyS     float64 `json:"busy_s"`      // ∫ GPU dt
	CoreS     float64 `json:"core_s"`      // ∫ Core dt
	MemMiBS   float64 `json:"mem_mib_s"`   // ∫ MemMiB dt
	PCIeMB    float64 `json:"pcie_mb"`     // ∫ PCIeMBps dt
	EnergyJ   float64 `json:"energy_j"`    // ∫ PowerW dt
	OccupiedS float64 `json:"occupied_s"`  // seconds with at least one application
	MemMaxMiB float64 `json:"mem_max_mib"` // most memory ever held

	Started  uint64 `json:"started"`  // applications that began
	Finished uint64 `json:"finished"` // that did all their work
	OOM      uint64 `json:"oom"`      // that ran out of memory
	Killed   uint64 `json:"killed"`   // whose process died before its work was done
	Faults   uint64 `json:"faults"`   // that lost their context through a fault

	Instances []Instance `json:"instances,omitempty"` // MIG's
	Processes []Process  `json:"processes"`
}

// Process is one process on a GPU.
type Process struct {
	PID       int     `json:"pid"`
	UID       int     `json:"uid"`
	App       string  `json:"app"`
	Kind      string  `json:"kind"`
	Instance  string  `json:"instance,omitempty"` // UUID of its MIG instance
	Server    int     `json:"server,omitempty"`   // pid of its MPS server
	Status    string  `json:"status"`
	GPU       float64 `json:"gpu"`     // what it asks for alone, 0..1
	MemMiB    float64 `json:"mem_mib"` // held
	DoneS     float64 `json:"done_s"`  // solo work done
	DurationS float64 `json:"duration_s,omitempty"`
	Slowdown  float64 `json:"slowdown"` // at this moment
	StartT    float64 `json:"start_t_s"`
}

// Snapshot looks at the GPU now.
func (d *Device) Snapshot() (Snapshot, error) {
	var s Snapshot
	err := d.update(func(v *view) error {
		v.settle()
		s = d.snapshot(v)
		return nil
	})
	return s, err
}

func (d *Device) snapshot(v *view) Snapshot {
	y := &v.dyn
	s := Snapshot{
		Index: d.index, UUID: d.UUID(), Name: cString(d.rec.Name[:]), Model: d.ModelName(), Minor: d.Minor(),
		MemTotalMiB: d.rec.MemTotal, Lost: d.rec.Lost != 0,
		T: y.T, GPU: y.GPU, Core: y.Core, MemMiB: y.Mem, PCIeMBps: y.PCIe, PowerW: y.Power,
		BusyS: y.BusyS, CoreS: y.CoreS, MemMiBS: y.MemMiBS, PCIeMB: y.PCIeMB, EnergyJ: y.EnergyJ,
		OccupiedS: y.Occupied, MemMaxMiB: y.MemMax,
		Started: y.Started, Finished: y.Finished, OOM: y.OOM, Killed: y.Killed, Faults: y.Faults,
		Instances: d.Instances(), Processes: []Process{},
	}
	for i := range y.Member {
		m, sl := &y.Member[i], &d.rec.Slot[i]
		if !m.Status.present() {
			continue
		}
		p := Process{
			PID: int(sl.Pid), UID: int(sl.UID), App: cString(sl.App[:]), Kind: sl.Kind.String(), Server: int(sl.Server),
			Status: m.Status.String(), GPU: v.now(i).GPU, MemMiB: v.now(i).Mem, DoneS: m.Done, Slowdown: m.Slowdown, StartT: m.StartT,
		}
		if n := int(sl.Instance); n > 0 && n <= len(s.Instances) {
			p.Instance = s.Instances[n-1].UUID
		}
		if finite(sl.Duration) {
			p.DurationS = sl.Duration
		}
		s.Processes = append(s.Processes, p)
	}
	return s
}
