package procfork

// SpoilLastThread lets no child have its last thread, until restore.
func SpoilLastThread(p *Parent) (restore func()) {
	s := p.threads[len(p.threads)-1]
	whole := s.extended
	s.extended = whole[:8]
	return func() { s.extended = whole }
}
