package gpusim

// Snapshot is a GPU at one moment.
type Snapshot struct {
	Index       int     `json:"index"`
	UUID        string  `json:"uuid"`
	Name        string  `json:"name"`
	MemTotalMiB float64 `json:"mem_total_mib"`
	Lost        bool    `json:"lost"`

	Figures
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
func (d *Device) Snapshot() (s Snapshot, err error) {
	err = d.update(func(v *view) error {
		v.speeds()
		s = Snapshot{
			Index: d.index, UUID: d.UUID(), Name: cString(d.rec.Name[:]), MemTotalMiB: d.rec.MemTotal, Lost: d.rec.Lost != 0,
			Figures: v.dyn.Figures, Instances: d.Instances(), Processes: []Process{},
		}
		for i, sl := range v.present {
			m := &v.dyn.Member[i]
			p := Process{
				PID: int(sl.Pid), UID: int(sl.UID), App: cString(sl.App[:]), Kind: sl.Kind.String(), Server: int(sl.Server),
				Status: m.Status.String(), GPU: v.now(i).GPU, MemMiB: v.now(i).Mem, DoneS: m.Done, Slowdown: m.Slowdown,
				StartT: m.StartT,
			}
			if sl.Instance > 0 {
				p.Instance = s.Instances[sl.Instance-1].UUID
			}
			if sl.Kind != Server {
				p.DurationS = sl.Duration
			}
			s.Processes = append(s.Processes, p)
		}
		return nil
	})
	return s, err
}
