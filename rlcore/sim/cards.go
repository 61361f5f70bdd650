package sim

import "github.com/slurmbridge/slurmbridge/rlcore"

// onCard is a profile and a GPU's model.
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

// on is what a job of a profile is on GPU g. A profile is made once for a model.
func (s *Sim) on(p *rlcore.Profile, g int) *rlcore.Profile {
	of := onCard{p, s.cfg.card(g)}
	if p == nil || of.card == "" {
		return p
	}
	made := s.onCard[of]
	if made == nil {
		made = s.cfg.On(p, of.card)
		s.onCard[of] = made
	}
	return made
}

// truth is what job i really does alone on GPU g.
func (s *Sim) truth(i, g int) *rlcore.Profile { return s.on(s.jobs[i].Truth, g) }

// onGPU is a job as decisions see it on GPU g.
func (s *Sim) onGPU(j *jobState, g int) rlcore.Job {
	out := j.Job
	out.Profile = s.on(j.Profile, g)
	return out
}

// know sets what a waiting job is expected to be, on each model.
func (s *Sim) know(i int) {
	j := &s.jobs[i]
	if j.Profile = s.foretell(i); s.cfg.On == nil || j.Profile == nil {
		return
	}
	of := rlcore.Cards{}
	for g := range s.devs {
		if card := s.cfg.card(g); of[card] == nil {
			of[card] = s.on(j.Profile, g)
		}
	}
	j.Cards = &of
}
