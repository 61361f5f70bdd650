package sim

import "github.com/slurmbridge/slurmbridge/rlcore"

// onCard is what a job really does, and a GPU's model.
type onCard struct {
	p    *rlcore.Profile
	card string
}

// card is the model of a GPU, "" = all are alike.
func (cfg *Config) card(g int) string {
	if cfg.On == nil || g >= len(cfg.Cards) {
		return ""
	}
	return cfg.Cards[g]
}

// truth is what job i really does alone on GPU g. It is made once for a model.
func (s *Sim) truth(i, g int) *rlcore.Profile {
	of := onCard{s.jobs[i].Truth, s.cfg.card(g)}
	if of.card == "" {
		return of.p
	}
	made := s.onCard[of]
	if made == nil {
		made = s.cfg.On(of.p, of.card)
		s.onCard[of] = made
	}
	return made
}

// onGPU is a job as decisions see it on GPU g.
func (s *Sim) onGPU(j *jobState, g int) rlcore.Job {
	out := j.Job
	out.Profile = j.On(&s.state.GPUs[g])
	return out
}

// know sets what a waiting job is expected to be, on each model.
func (s *Sim) know(i int) {
	j := &s.jobs[i]
	if j.Profile = s.site.Expect(&j.Job, j.known); s.cfg.On == nil || j.Profile == nil {
		return
	}
	of := rlcore.ProfilesByModel{}
	for g := range s.devs {
		if card := s.cfg.card(g); of[card] == nil {
			of[card] = s.cfg.On(j.Profile, card)
		}
	}
	j.ByModel = &of
}
