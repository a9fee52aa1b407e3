from django_jobq import job

notes: list[str] = []


@job
def note(text: str) -> None:
    """Be a job that is registered before the app registry is ready."""
    notes.append(text)
