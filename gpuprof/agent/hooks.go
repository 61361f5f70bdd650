package agent

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/slurmbridge/slurmbridge/prolog"
)

// ShowHooks exports what the hooks of this node, with that settings file, would find at a job's start, read at each
// scrape: slurmbridge doctor reads it from the controller.
func ShowHooks(reg prometheus.Registerer, settings string) {
	gauge := func(name, help string, is func() bool) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "gpuprof", Name: name, Help: help}, func() float64 {
			if is() {
				return 1
			}
			return 0
		}))
	}
	gauge("hook_settings_ok", "1 where the hooks' settings (node.yaml) make sense, 0 where a default takes the place of one that doesn't; the log names it.",
		func() bool { _, err := prolog.Load(settings); return err == nil })
	gauge("mps_control_present", "1 where nvidia-cuda-mps-control is there for the hooks to start, 0 where jobs that share a GPU take turns instead.",
		func() bool { s, _ := prolog.Load(settings); return s.HasMPS() })
}
